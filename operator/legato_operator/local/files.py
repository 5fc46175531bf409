"""The files by which processes find one another: announced ports, and the list of workers for gateways."""

import json
import os
from pathlib import Path


def write_atomically(path: Path, content: str) -> None:
    """Replace a file so that no reader sees half of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(content)
    fresh.replace(path)


def read_ports(path: Path) -> dict[str, int] | None:
    """The ports that a process announced; None while it has not."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return {str(name): int(port) for name, port in content.items()}


class WorkersFile:
    """The workers of one service as its gateways read them: all that have a process with a control port."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._addresses: dict[str, str] = {}
        self._write()

    def add(self, worker: str, address: str) -> None:
        """A worker can be reached, perhaps at another address than before."""
        self._addresses[worker] = address
        self._write()

    def remove(self, worker: str) -> None:
        """A worker's process is gone. One that was never added is no error."""
        if self._addresses.pop(worker, None) is not None:
            self._write()

    def _write(self) -> None:
        entries = [{"worker": name, "address": address} for name, address in sorted(self._addresses.items())]
        write_atomically(self.path, json.dumps(entries))
