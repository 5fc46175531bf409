"""A second release that looks after one namespace, with a Role there and no rights on the cluster, beside the first."""

import subprocess
from collections.abc import Iterator

import helm
import pytest
from kube import Namespace
from service import Service

RELEASE = "legato-team"
MANIFEST = """
apiVersion: serving.legato.dev/v1alpha1
kind: InferenceService
metadata: {name: ours}
spec:
  model: {source: {builtin: smollm2-135m-instruct}}
  engine: {kvCacheMemory: 256Mi}
  prefill: {resources: {requests: {cpu: 200m, memory: 800Mi}}}
  decode: {resources: {requests: {cpu: 200m, memory: 800Mi}}}
  routing: {localPrefillBelowTokens: 0, whenPrefillBusy: Wait}
  drain: {deadline: 5s}
"""


@pytest.fixture(scope="module")
def team(release: Namespace, namespace: Namespace) -> Iterator[Namespace]:
    """The namespace, with an operator of its own in it."""
    _ignore(release, namespace.name)
    helm.install(namespace, RELEASE, "crds.install=false", f"watchNamespaces={{{namespace.name}}}")
    yield namespace
    helm.uninstall(namespace, RELEASE)
    helm.upgrade(release)


def test_a_role_is_enough(team: Namespace) -> None:
    team.apply(MANIFEST)
    service = Service(team, "ours")
    service.until_ready()
    answer, route = service.ask("Name the capital of France.")
    assert "Paris" in answer
    assert route["transport"].startswith("ucx:")
    events = team.list("events")
    instances = {e["reportingInstance"] for e in events if e["regarding"]["kind"] == "InferenceService"}
    assert instances
    assert all(name.startswith(RELEASE) for name in instances), "only the team's operator worked on it"
    account = f"system:serviceaccount:{team.name}:{RELEASE}"
    assert _can(account, "create", "pods", "--namespace", team.name)
    for verb, what in (("list", "pods"), ("get", "secrets"), ("list", "inferenceservices.serving.legato.dev")):
        assert not _can(account, verb, what, "--all-namespaces")
    team.kubectl("delete", "inferenceservice", "ours", "--timeout=120s")


def _ignore(system: Namespace, namespace: str) -> None:
    """Tell the release of the whole cluster whose services are not its own."""
    helm.upgrade(system, f"ignoreNamespaces={{{namespace}}}")


def _can(account: str, *question: str) -> bool:
    command = ["kubectl", "auth", "can-i", *question, "--as", account]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == "yes"
