"""Files for discovery between processes: announced ports, the list of workers for gateways, and mounted folders."""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_atomically(path: Path, content: str) -> None:
    """Replaces a file so that no reader sees a partial one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(content)
    fresh.replace(path)


def read_ports(path: Path) -> dict[str, int] | None:
    """Returns the ports that a process announced, or None before it has."""
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return {str(name): int(port) for name, port in content.items()}


class WorkersFile:
    """The file from which a service's gateways learn its workers: all whose process has a control port."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._addresses: dict[str, str] = {}
        self._write()

    def add(self, worker: str, address: str) -> None:
        """Adds a worker, or changes its address."""
        self._addresses[worker] = address
        self._write()

    def remove(self, worker: str) -> None:
        """Removes a worker whose process has ended. A worker that was never added is not an error."""
        if self._addresses.pop(worker, None) is not None:
            self._write()

    def _write(self) -> None:
        entries = [{"worker": name, "address": address} for name, address in sorted(self._addresses.items())]
        write_atomically(self.path, json.dumps(entries))


class MountedFolder:
    """A Secret or ConfigMap mounted in pods, with a file for each key. As with a kubelet, all files change atomically,
    and stay after the object is deleted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700)

    def write(self, content: Mapping[str, str]) -> None:
        """Replaces all files."""
        data, link = self.path / "..data", self.path / "..next"
        before = data.resolve() if data.is_symlink() else None
        fresh = Path(tempfile.mkdtemp(prefix="..", dir=self.path))
        for name, text in content.items():
            (fresh / name).write_text(text)
        link.symlink_to(fresh.name)
        link.replace(data)
        for name in content:
            if not (self.path / name).is_symlink():
                (self.path / name).symlink_to(Path(data.name, name))
        if before is not None:
            shutil.rmtree(before)
