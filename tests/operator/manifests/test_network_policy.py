"""Whom a worker's NetworkPolicy takes for the operator."""

import pytest

from legato_operator.api import parsing
from legato_operator.manifests import network_policy


@pytest.mark.parametrize(
    ("namespace", "selector"),
    [("legato-system", {"matchLabels": {"kubernetes.io/metadata.name": "legato-system"}}), ("", {})],
)
def test_operator_is_let_in_from_its_own_namespace_where_it_has_one(build, namespace, selector):
    policy = network_policy.workers(parsing.read_service(build()), namespace)
    peers = [peer for rule in policy["spec"]["ingress"] for peer in rule.get("from", ())]
    found = [peer["namespaceSelector"] for peer in peers if "namespaceSelector" in peer]
    assert found == [selector]


@pytest.mark.parametrize("namespace", ["legato-system", ""])
def test_a_gateways_control_port_is_for_the_operator_alone(build, namespace):
    (clients, operator) = network_policy.gateway(parsing.read_service(build()), namespace)["spec"]["ingress"]
    assert (clients.get("from"), [port["port"] for port in clients["ports"]]) == (None, [8080, 8081])
    assert [port["port"] for port in operator["ports"]] == [8082, 8084]
    (peer,) = operator["from"]
    assert peer["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "legato-operator"}}
    assert peer["namespaceSelector"].get("matchLabels", {}) == (
        {"kubernetes.io/metadata.name": namespace} if namespace else {}
    )
