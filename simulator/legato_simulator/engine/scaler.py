"""The autoscaler's interface in a simulation, and Legato's own autoscaler."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from legato_operator.policy import Signals, Spec, Window, decide


@dataclass(frozen=True)
class Observation:
    """The input of every autoscaler, every 2 s. Pools are `prefill` and `decode`, as in the manifest."""

    now: float  # seconds from the beginning
    signals: Signals  # as in the operator
    sizes: Mapping[str, int]  # currently desired workers by pool
    ready: Mapping[str, int]  # ready workers by pool
    requests: float  # arrivals per second over the last 10 s
    in_flight: Mapping[str, int]  # by pool: prompts queued or computed; sequences decoding or parked
    queue_tokens: int  # uncached prompt tokens that are queued or being prefilled
    kv_usage: float  # used share of the KV of ready decode workers, 0 to 1


class Scaler(Protocol):
    """An autoscaler. It may keep state; each run has its own."""

    name: str

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        """Returns desired sizes by pool. The simulator limits them to the manifest's bounds, ratio and budget."""
        ...


class LegatoScaler:
    """Decides as the operator does."""

    def __init__(self, spec: Spec) -> None:
        self.name = "legato"
        self._spec = spec
        self._windows: Mapping[str, Window] = {}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        decision = decide(seen.signals, self._windows, self._spec, seen.sizes, seen.now)
        self._windows = decision.windows
        return {pool: made.desired for pool, made in decision.pools.items()}
