"""A pytest plugin that reports where a test run's processor time goes: `scripts/test -p cpu_seconds`.

Counts user and system time of the processes that run tests and of the children that they have waited for, per test
file. Time of a service that several files share counts for the file at whose end it is stopped.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

ROWS = 60

_cpu: Counter[str] = Counter()
_elapsed: Counter[str] = Counter()
_before = 0.0


def _now() -> float:
    return sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart() -> None:
    global _before
    _before = _now()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[Any]:
    global _before
    report = yield
    now = _now()
    report.processor_seconds, _before = now - _before, now
    return report


def pytest_runtest_logreport(report: Any) -> None:
    name = report.nodeid.partition("::")[0]
    _cpu[name] += getattr(report, "processor_seconds", 0.0)
    _elapsed[name] += report.duration


def pytest_terminal_summary(terminalreporter: Any) -> None:
    total = _now()
    _cpu["(collecting and ending)"] = total - _cpu.total()
    terminalreporter.section(f"processor seconds: {total:.0f}")
    for name, seconds in _cpu.most_common(ROWS):
        terminalreporter.write_line(f"{seconds:8.1f} s, {_elapsed[name]:8.1f} s elapsed  {name}")
