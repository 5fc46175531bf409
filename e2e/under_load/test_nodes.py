"""Nodes are emptied and lost under streams."""

import os
import shlex

import helm
import kube
import pytest
from kube import Namespace
from load import Load
from nodes import PATIENCE, draining, node_of
from service import Service

# Commands that cut a node's power and start it again, but for its name: `scripts/e2e` knows those of its clusters.
STOP = shlex.split(os.environ.get("LEGATO_E2E_STOP_NODE", ""))
START = shlex.split(os.environ.get("LEGATO_E2E_START_NODE", ""))
ROLES = ("prefill", "decode", "gateway")


def test_a_node_is_drained_while_the_operator_restarts(service: Service, load: Load, release: Namespace) -> None:
    leaving = service.found("decode")[0]
    with draining(node_of(leaving)):
        service.until_gone(leaving)
        helm.restart_operator(release)
    for role in ROLES:
        service.until_pods(role, 2)
    load.until_more(8)
    helm.until_operating(release)


def test_a_node_with_the_only_worker_is_drained(service: Service, load: Load) -> None:
    for role in ("prefill", "decode"):
        service.scale(role, 1)
        service.until_pods(role, 1)
    with draining(node_of(service.found("decode")[0])):
        load.until_more(8)
    for role in ("prefill", "decode"):
        service.until_pods(role, 1)
    load.until_more(8)


@pytest.fixture
def spread(settled: Service) -> Service:
    """Pods of every role on more than one node."""
    for role in ROLES:
        one, other = settled.found(role)
        if node_of(one) == node_of(other):
            kube.run("kubectl", "cordon", node_of(one))
            settled.namespace.kubectl("delete", "pod", one["metadata"]["name"])
            settled.until_pods(role, 2)
            kube.run("kubectl", "uncordon", node_of(one))
    settled.until_settled()
    return settled


@pytest.mark.skipif(not (STOP and START), reason="LEGATO_E2E_STOP_NODE and LEGATO_E2E_START_NODE are not set")
def test_a_node_is_lost_and_comes_back(spread: Service, undisturbed: dict[str, str]) -> None:
    """A client's connection goes with its gateway, so these clients are those of a gateway that stays."""
    stays, goes = spread.found("gateway")
    lost = node_of(goes)
    with Load(spread.client_of(stays["metadata"]["name"]), spread.name, undisturbed) as load:
        kube.run(*STOP, lost)
        try:
            load.until_more(8)
            for role in ROLES:
                kube.until(
                    lambda role=role: lost not in map(node_of, spread.found(role)),
                    f"the cluster gives {role} pods on {lost} up",
                    patience=PATIENCE,
                )
                spread.until_pods(role, 2, patience=PATIENCE)
            load.until_more(8)
        finally:
            kube.run(*START, lost)
        kube.run("kubectl", "wait", "--for=condition=Ready", f"node/{lost}", "--timeout=60s")
        spread.until_settled()
    assert load.failures == []
