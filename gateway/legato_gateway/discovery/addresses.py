"""The interface of all sources of worker addresses, and the simplest source."""

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
        """Reason why the list may be out of date; empty if it is current."""
        ...

    def watch(self) -> AsyncIterator[tuple[WorkerAddress, ...]]:
        """Yields all workers now, and again after every change. Ends when no change is possible any more."""
        ...


class StaticDiscovery:
    """A fixed list of workers."""

    problem = ""

    def __init__(self, workers: tuple[WorkerAddress, ...]) -> None:
        self._workers = workers

    async def watch(self) -> AsyncIterator[tuple[WorkerAddress, ...]]:
        yield self._workers
