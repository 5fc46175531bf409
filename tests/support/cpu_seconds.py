"""A pytest plugin that reports where a test run's processor time goes: `scripts/test -p cpu_seconds`.

Counts user and system time of the processes that run tests and of the children that they have waited for, per test
file. What a fixture of the whole run has started counts for the fixture, where it is stopped.
"""

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

ROWS = 60

_cpu: Counter[str] = Counter()
_elapsed: Counter[str] = Counter()
_spent: Counter[str] = Counter()  # in this process, since its last report
_before = 0.0


def _now() -> float:
    return sum(os.times()[:4])


def _count(name: str) -> None:
    global _before
    now = _now()
    _spent[name] += now - _before
    _before = now


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart() -> None:
    global _before
    _before = _now()


def pytest_fixture_post_finalizer(fixturedef: Any, request: pytest.FixtureRequest) -> None:
    is_shared = fixturedef.scope == "session"
    _count(f"(fixture {fixturedef.argname})" if is_shared else _file(request.node.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[Any]:
    report = yield
    _count(_file(item.nodeid))
    report.processor_seconds = dict(_spent)
    _spent.clear()
    return report


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_runtest_logreport(report: Any) -> None:
    _cpu.update(getattr(report, "processor_seconds", {}))
    _elapsed[_file(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter: Any) -> None:
    total = _now()
    _cpu["(collecting and ending)"] = total - _cpu.total()
    terminalreporter.section(f"processor seconds: {total:.0f}")
    for name, seconds in _cpu.most_common(ROWS):
        terminalreporter.write_line(f"{seconds:8.1f} s, {_elapsed[name]:8.1f} s elapsed  {name}")
