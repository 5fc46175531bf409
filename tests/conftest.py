"""The order of all tests, the loops of coroutines, and what must not be left when they have run."""

import contextlib
import gc
import inspect
import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any

import certificates
import psutil
import pytest
from virtual_loop import VirtualLoop
from xdist.scheduler import LoadScopeScheduling

MARK = "LEGATO_TEST_SESSION"  # a variable that every process of a test inherits

# As in the core of a worker. Beside other tests and services, threads of one kernel seldom run at the same time, and
# by libgomp's default each would spend milliseconds on looking for the others. Read when torch is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

# Triton's kernels are interpreted. Read when a kernel is defined.
os.environ.setdefault("TRITON_INTERPRET", "1")

# Files that run in sequence in one process, by the name of the fixture that they share there. Tests of whole services
# also have deadlines, which two of them would miss on the same cores. While they wait, other processes run other files.
SHARING = {
    "tests/system/": "service",
    "tests/gateway/tokenizer/": "tokenizer by transformers",
    "tests/engine/test_first_example.py": "SmolLM2",
    "tests/engine/test_oracle.py": "SmolLM2",
    "tests/operator/kubernetes/test_release.py": "API servers of its own",
    "tests/operator/kubernetes/test_rights.py": "another API server of its own",
    "tests/operator/kubernetes/": "controlled",
    "tests/operator/api/": "api_server",
    "tests/operator/manifests/test_rdma.py": "api_server",
    "tests/operator/test_cluster_conformance.py": "api_server",
    "tests/operator/test_golden.py": "api_server",
}

# Some images ask for no bytecode. Each process would then compile what it imports of this project, and rewrite the
# assertions of all tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "virtual_time: runs on a loop whose waits take no time")
    config.addinivalue_line("markers", "uvloop: runs on the gateway's own loop, whose transports differ from asyncio's")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Orders tests. Whole services come first: they are one long row, and the last file to end should be a short one.
    Then tests on an API server, which wait half of their time: in CI, that is while images are built."""
    items.sort(key=lambda item: ("system" not in item.path.parts, "kubernetes" not in item.path.parts))


def pytest_collection_finish() -> None:
    """Modules and tests are permanent: each full collection of garbage would walk two million objects."""
    gc.freeze()


class ByGroup(LoadScopeScheduling):  # type: ignore[misc]
    """Runs a file in sequence in one process, and files together that share a fixture of the whole run."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return next((group for path, group in SHARING.items() if file.startswith(path)), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup:
    return ByGroup(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(name: str, obj: object) -> None:
    """Runs every coroutine with anyio's plugin."""
    if name.startswith("test_") and inspect.iscoroutinefunction(obj):
        pytest.mark.anyio(obj)


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    if request.node.get_closest_marker("virtual_time"):
        return "asyncio", {"loop_factory": VirtualLoop}
    return "asyncio", {"use_uvloop": request.node.get_closest_marker("uvloop") is not None}


def _certificate(factory: pytest.TempPathFactory) -> certificates.TLSFiles:
    names = "DNS:localhost,IP:127.0.0.1,DNS:s-workers.demo.svc,DNS:demo-workers.default.svc"
    return certificates.make(factory.mktemp("tls") / "made", names=f"subjectAltName={names}")


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.TLSFiles:
    """A certificate for this machine and for workers, and its authority."""
    return _certificate(tmp_path_factory)


@pytest.fixture(scope="session")
def others(tmp_path_factory: pytest.TempPathFactory) -> certificates.TLSFiles:
    """Another authority's, for the same names."""
    return _certificate(tmp_path_factory)


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Whatever a test started has ended, at the latest a moment after the last one."""
    os.environ[MARK] = session = secrets.token_hex(8)
    yield
    _, left = psutil.wait_procs([p for p in psutil.process_iter() if _session(p) == session], timeout=30)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    assert not left, f"left behind: {left}"


def _session(process: psutil.Process) -> str:
    """The session whose tests started it; empty for strangers."""
    try:
        return process.environ().get(MARK, "")
    except psutil.Error:
        return ""
