"""Nodes are emptied and lost under streams. These nodes have no other pods than those of this file."""

import os
import shlex

import kube
import nodes
import pytest
from kube import Object
from load import Load
from nodes import PATIENCE, draining
from service import Service

# Commands that cut a node's power and start it again, but for its name: `scripts/e2e` knows those of its clusters.
STOP = shlex.split(os.environ.get("LEGATO_E2E_STOP_NODE", ""))
START = shlex.split(os.environ.get("LEGATO_E2E_START_NODE", ""))
ROLES = ("prefill", "decode", "gateway")


@pytest.fixture(scope="module")
def pods(release: object) -> Object:
    if not kube.items("nodes", selector=nodes.RESERVED):
        kube.lacks(f"this needs a cluster of more than {nodes.RESERVED_NODES} nodes")
    return nodes.on_reserved()


@pytest.fixture
def spread(settled: Service) -> Service:
    for role in ROLES:
        one, other = settled.found(role)
        if nodes.of(one) == nodes.of(other):
            nodes.cordon(nodes.of(one), True)
            settled.namespace.delete("pods", one["metadata"]["name"])
            settled.until_gone(one)
            settled.until_pods(role, 2)
            nodes.cordon(nodes.of(one), False)
    settled.until_settled()
    return settled


def test_a_node_is_drained(spread: Service, load: Load) -> None:
    leaving = spread.found("decode")[0]
    with draining(nodes.of(leaving)):
        spread.until_gone(leaving)
    for role in ROLES:
        spread.until_pods(role, 2)


@pytest.mark.skipif(not (STOP and START), reason="LEGATO_E2E_STOP_NODE and LEGATO_E2E_START_NODE are not set")
def test_a_node_is_lost_and_comes_back(spread: Service, undisturbed: dict[str, str]) -> None:
    """A client's connection goes with its gateway, so these clients are those of a gateway that stays."""
    stays, goes = spread.found("gateway")
    lost = nodes.of(goes)
    with Load(spread.client_of(stays), spread.name, undisturbed) as load:
        kube.run(*STOP, lost)
        try:
            load.until_more(4)
            for role in ROLES:
                kube.until(
                    lambda role=role: lost not in map(nodes.of, spread.found(role)),
                    f"the cluster gives {role} pods on {lost} up",
                    patience=PATIENCE,
                )
                spread.until_pods(role, 2, patience=PATIENCE)
            load.until_more(4)
        finally:
            kube.run(*START, lost)
        ready = ("--for=condition=Ready", f"node/{lost}", f"--timeout={PATIENCE:.0f}s")
        kube.run("kubectl", "wait", *ready, patience=PATIENCE + 30)
        spread.until_settled()
    assert load.failures == []
