"""With NetworkPolicies enforced a service works, and strangers reach only the ports of clients and probes."""

from collections.abc import Iterator

import kube
import probe
import pytest
from helm import Release
from kube import Namespace
from service import Service

HTTP, HEALTH, CONTROL, OPERATOR_HTTP = 8080, 8081, 8082, 8083
TRANSFER = range(8100, 8200)
ALL = [HTTP, HEALTH, CONTROL, OPERATOR_HTTP, *TRANSFER]
ROLES = ("prefill", "decode", "gateway")


@pytest.fixture(scope="module", autouse=True)
def enforced(space: Namespace) -> None:
    probe.needs_policies(space)


@pytest.fixture(scope="module")
def hosts(service: Service) -> dict[str, str]:
    return {role: service.found(role)[0]["status"]["podIP"] for role in ROLES}


@pytest.fixture(params=["another namespace", "the same namespace"])
def strangers(request: pytest.FixtureRequest, space: Namespace) -> Iterator[Namespace]:
    """A namespace with a pod that is not a part of the service."""
    if request.param == "the same namespace":
        probe.start(space, probe.STRANGER)
        yield space
        space.delete("pods", probe.STRANGER)
    else:
        with kube.namespace("e2e-strangers") as other:
            probe.start(other, probe.STRANGER)
            yield other


def test_peers_reach_control_and_transfer(service: Service, hosts: dict[str, str]) -> None:
    """The ports that strangers must not reach are there: workers hand over, and the operator asks them."""
    _, route = service.ask("Name the capital of France.")
    assert route["transport"].startswith("ucx:")
    assert service.condition("KVTransportReady")["reason"] == "Connected"
    decode, *_ = service.pods("decode")

    def reached() -> bool:
        found = probe.reached(service.namespace, decode, [hosts["prefill"]], ALL)[hosts["prefill"]]
        return found >= {HEALTH, CONTROL} and bool(found & {*TRANSFER})

    kube.until(reached, "the decode worker reaches all ports of the prefill worker")


def test_strangers_reach_only_ports_of_clients_and_probes(
    service: Service, hosts: dict[str, str], release: Release, strangers: Namespace
) -> None:
    """A stranger with the label of the operator's pods is one, too: these are let in from their own namespace."""
    (operator,) = release.operators()
    hosts = {**hosts, "operator": probe.address(release.namespace, operator)}
    allowed = {
        hosts["prefill"]: {HEALTH},
        hosts["decode"]: {HEALTH},
        hosts["gateway"]: {HTTP, HEALTH},
        hosts["operator"]: {OPERATOR_HTTP},
    }
    _until_reached(strangers, allowed)
    label = {"metadata": {"labels": {"app.kubernetes.io/name": "legato-operator"}}}
    strangers.patch("pods", probe.STRANGER, label)
    decode = hosts["decode"]
    _until_reached(strangers, {decode: {HEALTH}})


def _until_reached(strangers: Namespace, allowed: dict[str, set[int]]) -> None:
    """Waits until a stranger reaches exactly these ports. A busy machine may answer or apply policies late."""

    def reached() -> bool:
        return probe.reached(strangers, probe.STRANGER, allowed, ALL) == allowed

    kube.until(reached, f"strangers reach {allowed} and nothing else")
