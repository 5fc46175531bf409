"""A cluster with the chart installed, in which each file of tests has a namespace of its own.

Without a cluster (`scripts/e2e` brings one) everything is skipped with the reason.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).with_name("support")))  # shared by these tests alone

import kube  # noqa: E402
from kube import Namespace  # noqa: E402

CHART = ROOT / "charts" / "legato"
RELEASE = "legato"
SYSTEM = "legato-system"


def image_values() -> list[str]:
    """The images under test, as `scripts/e2e` built and loaded them."""
    tag, registry = os.environ.get("LEGATO_E2E_TAG", "e2e"), os.environ.get("LEGATO_E2E_REGISTRY", "")
    values = [f"images.{name}.tag={tag}" for name in ("operator", "gateway", "engine")]
    return [word for value in [*values, f"images.registry={registry}"] for word in ("--set", value)]


def make_namespace(name: str) -> Namespace:
    """Where only restricted pods may run."""
    kube.run("kubectl", "create", "namespace", name)
    kube.run("kubectl", "label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    return Namespace(name)


@pytest.fixture(scope="session", autouse=True)
def cluster() -> None:
    """Skips all where there is none."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no KUBECONFIG: scripts/e2e brings a cluster up")
    for program in ("kubectl", "helm"):
        if not shutil.which(program):
            pytest.skip(f"{program} is not on the PATH")


@pytest.fixture(scope="session")
def release(cluster: None) -> Iterator[Namespace]:
    """The chart, installed for all namespaces."""
    system = make_namespace(SYSTEM)
    kube.run(
        "helm", "install", RELEASE, str(CHART), "--namespace", SYSTEM, *image_values(), "--wait", "--timeout", "2m"
    )
    yield system
    system.kubectl("delete", "inferenceservices", "--all", "--timeout=120s")  # it takes an operator to let one go
    kube.run("helm", "uninstall", RELEASE, "--namespace", SYSTEM, "--wait")
    kube.run("kubectl", "delete", "namespace", SYSTEM)


@pytest.fixture(scope="module")
def namespace(release: Namespace, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of this file's own; afterwards it must go, with all that is in it."""
    made = make_namespace("e2e-" + request.module.__name__.rpartition(".")[2].removeprefix("test_").replace("_", "-"))
    yield made
    kube.run("kubectl", "delete", "namespace", made.name, "--timeout=120s")
