"""Two releases in one namespace: only one of them works on a service, and neither goes while it is needed."""

import subprocess
from collections.abc import Callable, Iterator

import helm
import kube
import pytest
from kube import Namespace
from service import Service

BESIDE = "legato-beside"


@pytest.fixture
def beside(release: Namespace, namespace: Namespace) -> Iterator[Namespace]:
    """A second release in the namespace of the first, for a namespace that the first watches too."""
    helm.install(release, BESIDE, "crds.install=false", f"watchNamespaces={{{namespace.name}}}", wait=False)
    yield release
    helm.uninstall(release, BESIDE)
    helm.upgrade(release)


def reasons(service: Service) -> set[tuple[str, str]]:
    """Who told what of it."""
    return {(str(each["reason"]), str(each["reportingInstance"]).rsplit("-", 2)[0]) for each in service.events()}


def refused_uninstall(system: Namespace, release: str) -> str:
    command = ("helm", "uninstall", release, "--namespace", system.name)
    done = subprocess.run(command, capture_output=True, text=True, timeout=kube.PATIENCE, check=False)
    assert done.returncode != 0
    return done.stdout + done.stderr


def test_one_leaves_a_service_to_the_other_until_it_is_told_to(
    serve: Callable[..., Service], beside: Namespace, namespace: Namespace
) -> None:
    service = serve("shared")
    service.until_settled()
    workers = service.workers()
    kube.until(lambda: ("NamespaceTaken", BESIDE) in reasons(service), "the second release says that it is taken")
    told = refused_uninstall(beside, helm.RELEASE)
    assert f"{namespace.name}/shared" in told or "check-no-services failed" in told
    helm.keep(beside)
    helm.upgrade(beside, f"ignoreNamespaces={{{namespace.name}}}")
    beside.kubectl("rollout", "status", f"deployment/{BESIDE}", "--timeout=120s")
    assert service.workers() == workers
    service.scale("decode", 2)
    service.until_pods("decode", 2)
    assert workers < service.workers()
    service.namespace.kubectl("delete", "inferenceservice", service.name, "--timeout=120s")
