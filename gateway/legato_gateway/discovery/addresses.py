"""Workers' addresses: the interface of all their sources, a fixed list, and a JSON file."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import msgspec

from legato_protocol.process.followed_files import FollowedFiles, InvalidFile


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


class BadWorkersFile(InvalidFile):
    """A workers file that is not a JSON list of `{"worker", "address"}`. The text says where and why."""


class FileDiscovery(FollowedFiles[tuple[WorkerAddress, ...] | None]):
    """Workers listed in a JSON file, in which a local operator writes them for its gateway.

    Its writer replaces it atomically, and it may come later than this process.
    """

    def __init__(self, path: Path, interval: float = 0.1) -> None:
        self.value = None
        with contextlib.suppress(InvalidFile):  # no workers are known until the file is valid
            super().__init__("workers", (path,), parse_workers, interval)

    async def watch(self) -> AsyncIterator[tuple[WorkerAddress, ...]]:
        known: tuple[WorkerAddress, ...] | None = None
        while True:
            if self.value is not None and self.value != known:
                known = self.value
                yield known
            await asyncio.sleep(self._interval)
            self.reload()


def parse_workers(content: bytes) -> tuple[WorkerAddress, ...]:
    """Parses a workers file. Raises BadWorkersFile."""
    try:
        workers = msgspec.json.decode(content, type=list[WorkerAddress])
    except msgspec.DecodeError as error:
        raise BadWorkersFile(str(error)) from None
    seen: set[str] = set()
    for each in workers:
        if each.worker in seen:
            raise BadWorkersFile(f"worker {each.worker!r} is listed twice")
        host, _, port = each.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise BadWorkersFile(f"{each.address!r} is not host:port")
        seen.add(each.worker)
    return tuple(workers)
