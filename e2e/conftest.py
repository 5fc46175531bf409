"""A cluster with the chart installed, in which each file of tests has a namespace of its own.

Without a KUBECONFIG (`scripts/e2e` brings one) everything is skipped with the reason.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).with_name("support")))  # shared by these tests alone

import helm
import kube
from kube import Namespace


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    """Skips all where there is none. Who has one wants the tests: then a missing program is a failure."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no KUBECONFIG: scripts/e2e brings a cluster up")
    for program in ("kubectl", "helm"):
        if not shutil.which(program):
            pytest.fail(f"{program} is not on the PATH")


@pytest.fixture(scope="session")
def release(cluster: None) -> Iterator[Namespace]:
    """The chart, installed for all namespaces."""
    with kube.namespace("legato-system") as system:
        helm.install(system)
        yield system
        system.kubectl("delete", "inferenceservices", "--all", "--timeout=120s")  # it takes an operator to let one go
        helm.uninstall(system)


@pytest.fixture(scope="module")
def namespace(release: Namespace, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of this file's own; afterwards it must go, with all that is in it."""
    name = request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-")
    with kube.namespace(f"e2e-{name}") as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """With a failure comes what the cluster says of itself."""
    report = yield
    if report.failed and "cluster" in getattr(item, "fixturenames", ()) and shutil.which("kubectl"):
        report.sections.append(("cluster", kube.told()))
    return report
