"""What every source of worker addresses gives, and the plainest source."""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec


class WorkerAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker's name and its control port as `host:port`; with `tls`, that port speaks TLS."""

    worker: str
    address: str
    tls: bool = False


class Discovery(Protocol):
    """A source of worker addresses."""

    @property
    def problem(self) -> str:
        """Why what was told may be out of date; empty while all is well."""
        ...

    def watch(self) -> AsyncIterator[tuple[WorkerAddress, ...]]:
        """All workers now, and all workers again after every change. Ends when they can change no more."""
        ...


class StaticDiscovery:
    """Workers named once and for all."""

    problem = ""

    def __init__(self, workers: tuple[WorkerAddress, ...]) -> None:
        self._workers = workers

    async def watch(self) -> AsyncIterator[tuple[WorkerAddress, ...]]:
        yield self._workers
