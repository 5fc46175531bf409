"""A pytest plugin that collects once and runs tests in several forks: `-p forked_tests --processes 3`.

Each process of pytest-xdist would import and collect everything again.
"""

import contextlib
import multiprocessing
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterable
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

FORK = multiprocessing.get_context("fork")
# Set while tests are collected: forks would lack the threads of pools that are started then, and wait for them forever.
WITHOUT_THREADS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class Hooks:
    @pytest.hookspec(firstresult=True)
    def pytest_test_group(self, item: pytest.Item) -> str:
        """Returns the group of a test. A group runs in sequence in one process; by default, a file is a group."""


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(Hooks)


@pytest.hookimpl(trylast=True)
def pytest_test_group(item: pytest.Item) -> str:
    return str(item.path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="processes that run tests")
    os.environ.update(WITHOUT_THREADS)


def pytest_collection_finish() -> None:
    for name in WITHOUT_THREADS:
        os.environ.pop(name, None)
    if "torch" in sys.modules:  # it has read the variables
        sys.modules["torch"].set_num_threads(len(os.sched_getaffinity(0)))


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    option = session.config.option
    if option.processes == 1 or option.collectonly or option.usepdb or session.testsfailed:
        return None
    # Only numpy's OpenBLAS may have threads here, one for each further core: it starts them again in a fork.
    if len(os.listdir("/proc/self/task")) > (os.cpu_count() or 1):
        raise pytest.UsageError("a test module starts threads while it is imported: forks would wait for them")
    _Pool(session).run(option.processes)
    return True


class _Pool:
    """Gives groups of tests to processes and reports their results."""

    def __init__(self, session: pytest.Session) -> None:
        groups: dict[str, list[int]] = {}
        for index, item in enumerate(session.items):
            groups.setdefault(session.config.hook.pytest_test_group(item=item), []).append(index)
        self._groups = deque(groups.values())
        self._session = session
        self._hook = session.config.hook
        self._terminal = session.config.pluginmanager.getplugin("terminalreporter")
        self._stop = FORK.Event()
        self._workers: list[_Worker] = []

    def run(self, processes: int) -> None:
        self._terminal.showfspath = False  # of tests that run side by side
        try:
            for _ in range(min(processes, len(self._groups))):
                self._workers.append(_Worker(self._session, self._stop))
            while self._workers:
                ready = set(wait([source for worker in self._workers for source in worker.sources]))
                for worker in [each for each in self._workers if ready.intersection(each.sources)]:
                    self._receive(worker)
        finally:
            self._stop.set()
            for worker in self._workers:
                worker.process.join()
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _receive(self, worker: "_Worker") -> None:
        message = None
        with contextlib.suppress(EOFError, ConnectionResetError):
            message = worker.pipe.recv() if worker.pipe.poll() else None
        if message is None:
            self._end(worker)
            return
        name, values = message
        if name == "next":
            worker.give(self._groups.popleft() if self._groups else [])
            return
        if name == "pytest_runtest_logreport":
            values["report"] = self._hook.pytest_report_from_serializable(config=self._session.config, **values)
        if name == "warning":  # not by the hook, which would repeat it in later forks
            warning = warnings.WarningMessage(*values["warning"])
            self._terminal.pytest_warning_recorded(warning_message=warning, nodeid=values["nodeid"])
            return
        getattr(self._hook, name)(**values)
        if name == "pytest_runtest_logfinish":
            worker.left.popleft()
        if self._session.shouldfail or self._session.shouldstop:
            self._stop.set()

    def _end(self, worker: "_Worker") -> None:
        """Fails the test during which a process died. Another process continues with the tests after it."""
        worker.process.join()
        self._workers.remove(worker)
        if self._stop.is_set():
            return
        code = worker.process.exitcode
        if not worker.left:
            assert code == 0, f"a process that ran tests ended with {code} after its last one"
            return
        item = self._session.items[worker.left.popleft()]
        report = pytest.TestReport(
            item.nodeid, item.location, {}, "failed", f"the process of this test ended with {code}", "call"
        )
        self._hook.pytest_runtest_logreport(report=report)
        self._hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if worker.left:
            self._groups.appendleft(list(worker.left))
        if self._groups:
            self._workers.append(_Worker(self._session, self._stop))


class _Worker:
    """A fork and its unfinished tests, in their order."""

    def __init__(self, session: pytest.Session, stop: Any) -> None:
        self.left: deque[int] = deque()
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_run_tests, args=(session, self.pipe, theirs, stop))
        self.process.start()
        theirs.close()
        self.sources = (self.pipe, self.process.sentinel)

    def give(self, group: Iterable[int]) -> None:
        self.left.extend(group)
        with contextlib.suppress(BrokenPipeError):  # it has died, which its sentinel reports next
            self.pipe.send(group)


def _run_tests(session: pytest.Session, first_end: Connection, pipe: Connection, stop: Any) -> None:
    """Runs groups until none is left. Requests the next one before the last test of a group, so that fixtures that both
    share stay."""
    first_end.close()  # otherwise `pipe` would stay open after the death of the first process
    config = session.config
    _take_own_output(config)
    config.pluginmanager.register(_Relay(config, pipe))
    waiting: deque[int] = deque()
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError, EOFError):  # the first process has ended, or soon will
        while not (stop.is_set() or session.shouldfail or session.shouldstop):
            if len(waiting) < 2:
                pipe.send(("next", None))
                waiting.extend(pipe.recv())
            if not waiting:
                break
            item = session.items[waiting.popleft()]
            following = session.items[waiting[0]] if waiting else None
            config.hook.pytest_runtest_protocol(item=item, nextitem=following)
    session._setupstate.teardown_exact(None)


def _take_own_output(config: pytest.Config) -> None:
    """Captures output in files of this process, not in files that all forks share, and prints nothing."""
    config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()


class _Relay:
    """Sends pytest's reports to the first process."""

    def __init__(self, config: pytest.Config, pipe: Connection) -> None:
        self._config = config
        self._pipe = pipe

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._pipe.send(("pytest_runtest_logstart", {"nodeid": nodeid, "location": location}))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._pipe.send(("pytest_runtest_logreport", {"data": data}))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._pipe.send(("pytest_runtest_logfinish", {"nodeid": nodeid, "location": location}))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str) -> None:
        if when != "runtest":  # recorded before the fork
            return
        given = warning_message
        warning = str(given.message), given.category, given.filename, given.lineno
        self._pipe.send(("warning", {"warning": warning, "nodeid": nodeid}))
