"""Workers listed in a JSON file, in which a local operator writes them for its gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from legato_gateway.discovery.addresses import WorkerAddress


class BadWorkersFile(ValueError):
    """A workers file that is not a JSON list of `{"worker", "address"}`. The text says where and why."""


class FileDiscovery:
    """Workers listed in a JSON file that its writer replaces atomically.

    A missing or unreadable file changes nothing: the last good list stays, and `problem` has the reason.
    """

    def __init__(self, path: Path, interval: float = 0.1) -> None:
        self._path = path
        self._interval = interval
        self.problem = ""

    async def watch(self) -> AsyncIterator[tuple[WorkerAddress, ...]]:
        known: tuple[WorkerAddress, ...] | None = None
        content: bytes | None = None
        while True:
            read = await asyncio.to_thread(self._read)
            if read is not None and read != content:
                content = read
                workers = self._parse(read)
                if workers is not None and workers != known:
                    known = workers
                    yield workers
            await asyncio.sleep(self._interval)

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except OSError as error:
            self.problem = f"{self._path}: {error.strerror}"
            return None

    def _parse(self, content: bytes) -> tuple[WorkerAddress, ...] | None:
        try:
            workers = parse_workers(content)
        except BadWorkersFile as error:
            self.problem = f"{self._path}: {error}"
            return None
        self.problem = ""
        return workers


def parse_workers(content: bytes) -> tuple[WorkerAddress, ...]:
    """Parses a workers file. Raises BadWorkersFile."""
    try:
        workers = msgspec.json.decode(content, type=list[WorkerAddress])
    except msgspec.DecodeError as error:
        raise BadWorkersFile(str(error)) from None
    seen: set[str] = set()
    for worker in workers:
        if worker.worker in seen:
            raise BadWorkersFile(f"worker {worker.worker!r} is listed twice")
        check_address(worker.address)
        seen.add(worker.worker)
    return tuple(workers)


def check_address(address: str) -> None:
    """Raises BadWorkersFile unless `address` is `host:port`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadWorkersFile(f"{address!r} is no host:port")
