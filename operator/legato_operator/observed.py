"""What one read pass found: the plan's only input. Facts, no decisions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.resources import InferenceService


@dataclass(frozen=True)
class WorkerState:
    """What a worker says of itself on its control port."""

    busy: int  # sequences running or waiting
    draining: bool
    transport: str  # empty when it has none


@dataclass(frozen=True)
class Pod:
    """A pod of the service, whatever runs in it."""

    name: str
    uid: str
    pool: str  # prefill, decode or gateway
    revision: str
    created: str
    ready: bool
    leaving: bool  # its deletion was asked for
    message: str = ""  # why it is not ready
    refused: str = ""  # the last words of a process that ended with a permanent error
    address: str = ""  # host:port of a worker's control port, once known
    draining_since: float | None = None
    state: WorkerState | None = None  # None: it did not answer


@dataclass(frozen=True)
class Observed:
    service: InferenceService
    generation: int
    status: Mapping[str, Any]
    deleting: bool
    wishes: Mapping[str, int]  # by pool; only of pools that exist and have one
    pods: tuple[Pod, ...]
    has_token: bool
    now: float  # seconds since the epoch, of this machine
    timestamp: str  # the same, as the API spells it

    def of_pool(self, pool: str) -> tuple[Pod, ...]:
        """The pods of one pool, oldest first."""
        return tuple(pod for pod in self.pods if pod.pool == pool)
