"""The memory that a process may still take, by the files in which Linux says so."""

from pathlib import Path

import pytest

from legato_engine import memory


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """A machine with 8 GiB available, and a process in these control groups."""
    given = {"proc/meminfo": "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n", "proc/self/cgroup": groups, **files}
    for name, content in given.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def group(folder: str, limit: str, usage: int, inactive: int) -> dict[str, str]:
    stat = f"anon 12345\ninactive_file {inactive}\n"
    return {f"{folder}/memory.max": limit, f"{folder}/memory.current": str(usage), f"{folder}/memory.stat": stat}


@pytest.mark.parametrize("groups", ["0::/\n", "0::/pod/worker\n", "9:name=systemd:/\n4:memory:/pod\n0::/\n", ""])
def test_without_limits_it_is_what_the_machine_has(tmp_path: Path, groups: str) -> None:
    files = group("sys/fs/cgroup/pod", "max", 1 << 30, 0)
    assert memory.available(machine(tmp_path, groups, files)) == 8 << 30


@pytest.mark.parametrize("limited", ["pod", "pod/worker"])
def test_a_limit_holds_for_its_group_and_those_below(tmp_path: Path, limited: str) -> None:
    """Pages of files that are not in use do not count: the system gives them up first."""
    files = group("sys/fs/cgroup/pod", "max", 1 << 30, 0) | group("sys/fs/cgroup/pod/worker", "max", 1 << 30, 0)
    files |= group(f"sys/fs/cgroup/{limited}", str(3 << 30), 2 << 30, 1 << 30)
    assert memory.available(machine(tmp_path, "0::/pod/worker\n", files)) == 2 << 30


@pytest.mark.parametrize(("limit", "usage", "left"), [(1 << 30, 1 << 20, 1023 << 20), (1000, 2000, -1000)])
def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path, limit: int, usage: int, left: int) -> None:
    assert memory.available(machine(tmp_path, "0::/\n", group("sys/fs/cgroup", str(limit), usage, 0))) == left


def test_limits_of_version_1(tmp_path: Path) -> None:
    folder = "sys/fs/cgroup/memory/pod"
    files = {
        f"{folder}/memory.limit_in_bytes": str(2 << 30),
        f"{folder}/memory.usage_in_bytes": str(1 << 30),
        f"{folder}/memory.stat": f"inactive_file 7\ntotal_inactive_file {1 << 20}\n",
    }
    groups = "9:cpu:/pod\n4:memory:/pod\n0::/\n"
    assert memory.available(machine(tmp_path, groups, files)) == (1 << 30) + (1 << 20)


def test_this_machine_has_some() -> None:
    assert 0 < memory.available() < 1 << 60
