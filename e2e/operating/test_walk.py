"""What a new operator of clusters tries, one after the other, with eight streams through two gateways."""

import json
from collections.abc import Callable

import kube
import pytest
from kube import Namespace
from load import Load
from nodes import draining, node_of
from service import ROTATION, Service

ROLES = ("prefill", "decode", "gateway")


@pytest.fixture(scope="module")
def operated(serve: Callable[..., Service]) -> Service:
    return serve("walked", gateways=2)


def scale(service: Service, **sizes: int) -> None:
    for role, replicas in sizes.items():
        service.scale(role, replicas)
    for role, replicas in sizes.items():
        service.until_pods(role, replicas)


def test_the_walk_of_a_new_operator_while_the_token_is_replaced(operated: Service, load: Load) -> None:
    operated.namespace.kubectl(
        "annotate", "inferenceservice", operated.name, "serving.legato.dev/rotate-token=walk", "--overwrite"
    )
    scale(operated, prefill=2, decode=2)
    for role in ROLES:
        victim, *_ = operated.found(role)
        operated.namespace.kubectl("delete", "pod", victim["metadata"]["name"], "--wait=false")
        operated.until_gone(victim)
        operated.until_pods(role, 2)
    before = operated.workers()
    operated.patch({"engine": {"chunkTokens": 256}})
    kube.until(lambda: not before & operated.workers(), "all workers are of the new revision")
    for role in ROLES:
        operated.until_pods(role, 2)
    operated.until_settled()
    with draining(node_of(operated.found("decode")[0])):
        load.until_more(8)
    for role in ROLES:
        operated.until_pods(role, 2)
    scale(operated, prefill=1, decode=1)
    operated.until_event("TokenRotated", "the token has been replaced", patience=ROTATION)
    load.until_more(16)


def test_a_node_is_drained_while_a_pool_is_capped(operated: Service, load: Load, namespace: Namespace) -> None:
    """A wish for more workers than the manifest allows is no reason to keep those that there are on their node."""
    operated.patch({"scaling": {"decode": {"max": 1}}})
    operated.scale("decode", 3)
    kube.until(lambda: operated.condition("Progressing").get("reason") == "Capped", "the pool is capped")
    budget = namespace.get("poddisruptionbudgets", f"{operated.name}-decode")
    assert json.dumps(budget["spec"]["minAvailable"]) == "0"
    (only,) = operated.found("decode")
    with draining(node_of(only)):
        operated.until_gone(only)
    operated.until_pods("decode", 1)
    load.until_more(8)
