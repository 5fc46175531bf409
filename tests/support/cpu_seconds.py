"""A pytest plugin that reports where a test run's processor time goes: `scripts/test -p cpu_seconds`.

Counts user and system time of the pytest process and of the children that it has waited for, per test file. Time of a
service that several files share counts for the file at whose end it is stopped.
"""

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROWS = 60
FOLDER = "cpu-seconds"

_seconds: Counter[str] = Counter()
_elapsed: defaultdict[str, float] = defaultdict(float)
_start = sum(os.times()[:4])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    before = os.times()
    result = yield
    after = os.times()
    name = item.nodeid.partition("::")[0]
    _seconds[name] += sum(after[:4]) - sum(before[:4])  # type: ignore[assignment]
    _elapsed[name] += after.elapsed - before.elapsed
    return result


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    folder = Path(session.config.rootpath, "build", FOLDER)
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is not None or not session.config.getoption("numprocesses", None):
        folder.mkdir(parents=True, exist_ok=True)
        total = sum(os.times()[:4]) - _start
        rows = {name: (seconds, _elapsed[name]) for name, seconds in _seconds.items()}
        rows["(collecting and ending)"] = (total - sum(_seconds.values()), 0.0)
        (folder / f"{worker or 'main'}.json").write_text(json.dumps(rows))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:  # summaries of workers are seen by nobody
        return
    folder = Path(config.rootpath, "build", FOLDER)
    cpu: Counter[str] = Counter()
    elapsed: Counter[str] = Counter()
    for file in folder.glob("*.json"):
        for name, (seconds, wall) in json.loads(file.read_text()).items():
            cpu[name] += seconds
            elapsed[name] += wall
        file.unlink()
    terminalreporter.section(f"processor seconds: {cpu.total():.0f}")
    for name, seconds in cpu.most_common(ROWS):
        terminalreporter.write_line(f"{seconds:8.1f} s, {elapsed[name]:8.1f} s elapsed  {name}")
