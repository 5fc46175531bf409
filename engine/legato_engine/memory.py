"""Memory of this machine: the amount that a process may still use, and the return of freed memory to the system."""

import ctypes
from collections.abc import Iterator
from pathlib import Path

# A control group's files (version 2, version 1): limit, usage, and reclaimable file pages in the usage.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def give_back() -> None:
    """Returns freed memory to the system: most of the memory for a load is never needed again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # only glibc has it
        trim(ctypes.c_size_t(0))


def available(root: Path = Path("/")) -> int:
    """Bytes that this process can still use, within the limits of its control groups."""
    return min(_numbers(root / "proc/meminfo")["MemAvailable:"] * 1024, *_left_by_groups(root))


def _left_by_groups(root: Path) -> Iterator[int]:
    """Yields the bytes that each control group of this process, and each of its ancestors, leaves."""
    for line in (root / "proc/self/cgroup").read_text().splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        base = root / "sys/fs/cgroup" / controllers
        group = base / name.lstrip("/")
        for folder in (group, *group.parents):
            for limit, usage, reclaimable in _FILES:
                if folder.is_relative_to(base) and (folder / limit).is_file():
                    most = (folder / limit).read_text().strip()
                    used = int((folder / usage).read_text()) - _numbers(folder / "memory.stat").get(reclaimable, 0)
                    yield int(most) - used if most != "max" else 1 << 62
    yield 1 << 62


def _numbers(path: Path) -> dict[str, int]:
    """The first number of each line by its first word."""
    return {words[0]: int(words[1]) for line in path.read_text().splitlines() if len(words := line.split()) > 1}
