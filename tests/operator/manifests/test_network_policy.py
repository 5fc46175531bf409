"""Ports that NetworkPolicies open to the operator only."""

import pytest

from legato_operator.api import parsing
from legato_operator.manifests import network_policy


@pytest.mark.parametrize("namespace", ["legato-system", ""])
def test_control_ports_are_for_the_operator_from_its_namespace_where_it_has_one(build, namespace):
    service = parsing.read_service(build())
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}} if namespace else {}
    rules = network_policy.workers(service, namespace)["spec"]["ingress"]
    peers = [peer for rule in rules for peer in rule.get("from", ())]
    assert [peer["namespaceSelector"] for peer in peers if "namespaceSelector" in peer] == [selector]
    clients, operator = network_policy.gateway(service, namespace)["spec"]["ingress"]
    assert (clients.get("from"), [port["port"] for port in clients["ports"]]) == (None, [8080, 8081])
    assert [port["port"] for port in operator["ports"]] == [8082, 8084]
    (peer,) = operator["from"]
    assert peer["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "legato-operator"}}
    assert peer["namespaceSelector"] == selector
