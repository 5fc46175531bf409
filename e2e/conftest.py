"""A cluster with the chart installed, in which each file of tests has a namespace of its own.

Without a KUBECONFIG (`scripts/e2e` brings one) everything is skipped with the reason; in CI it fails. Files of tests
run side by side, each in a process of pytest-xdist; those in shared/ run in one, since they share a service.
"""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(Path(__file__).with_name("support")))  # shared by these tests only

import helm
import kube
import nodes
from helm import Release
from kube import Namespace
from service import network_is_the_clusters

# Files that restart their operator, take it apart or have another version of it: the others keep theirs.
OWN_OPERATOR = ("namespaced", "pods", "rollouts", "upgrade")
GPUS = f"gpuResources={{nvidia.com/gpu,{nodes.GPU},{nodes.DEVICE}}}"
IGNORED = f"ignoreNamespaces={{{','.join(f'e2e-{name}' for name in OWN_OPERATOR)}}}"
SYSTEM = Release(Namespace("legato-system"), "legato", (GPUS, IGNORED, "test.resources.requests.cpu=200m"))


class ByService(LoadScopeScheduling):  # type: ignore[misc]
    """Keeps the tests of a service together: those of a file, or of shared/."""

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        return path.parent.name if path.parent.name == "shared" else path.stem


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByService:
    return ByService(config, log)


def pytest_xdist_auto_num_workers() -> int:
    """Returns the number of processes: tests wait most of the time, but pods that start do not."""
    return 6


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Prepares the cluster in the only process, or in the one that hands out tests to the others."""
    with contextlib.ExitStack() as stack:
        hands_out = not hasattr(session.config, "workerinput") and not session.config.option.collectonly
        if os.environ.get("KUBECONFIG") and hands_out:
            stack.enter_context(_prepared())
        return (yield)


@contextlib.contextmanager
def _prepared() -> Iterator[None]:
    """The chart is installed for all namespaces but those with an operator of their own."""
    with nodes.prepared(), kube.namespace(SYSTEM.namespace.name):
        SYSTEM.install()
        try:
            yield
        finally:
            kube.until(lambda: not kube.items("inferenceservices"), "services went with their namespaces")
            SYSTEM.uninstall()


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    """Skips all tests where there is no cluster. With one, a missing program is a failure."""
    if not os.environ.get("KUBECONFIG"):
        kube.lacks("no KUBECONFIG: scripts/e2e brings a cluster up")
    for program in ("kubectl", "helm"):
        if not shutil.which(program):
            pytest.fail(f"{program} is not on the PATH")


@pytest.fixture(scope="session")
def release(cluster: None) -> Release:
    """The release for all namespaces. Nothing may be done to it: all tests need it."""
    return SYSTEM


@pytest.fixture(scope="module")
def namespace(cluster: None, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of this file's own."""
    name = request.path.stem.removeprefix("test_").replace("_", "-")
    with kube.namespace(f"e2e-{name}") as made:
        yield made


@pytest.fixture(scope="module")
def operator(namespace: Namespace, request: pytest.FixtureRequest) -> Iterator[Release]:
    """A release of this file's own: for its namespace, with a Role there and no rights on the cluster."""
    version = getattr(request.module, "VERSION", helm.PRESENT)
    if version is None:
        kube.lacks("no older version: scripts/e2e builds it from a commit that this clone lacks")
    values = (GPUS, "crds.install=false", f"watchNamespaces={{{namespace.name}}}")
    release = Release(namespace, namespace.name.replace("e2e", "legato"), values)
    release.install(version)
    yield release
    namespace.delete_services()
    release.uninstall()


@pytest.fixture(scope="session")
def network() -> None:
    """Skips tests whose clients have to reach Services by their names, such as those of streams that go on."""
    if not network_is_the_clusters():
        pytest.skip("a port-forward ends with its gateway; this needs the cluster's own network")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds the state of the cluster to a failure."""
    report = yield
    if report.failed and os.environ.get("KUBECONFIG") and shutil.which("kubectl"):
        report.sections.append(("cluster", kube.report()))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the values that tests have measured, also of tests that pass."""
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for what, value in report.user_properties if report.when == "call" else ():
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {what}: {value}")
