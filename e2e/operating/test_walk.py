"""What a new operator of clusters tries, one after the other, with eight streams through two gateways."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import kube
import pytest
from kube import Namespace
from load import Load
from nodes import draining, node_of
from service import Service

ROLES = ("prefill", "decode", "gateway")
ROTATION = 420.0  # seconds: three times what a kubelet takes to write a Secret anew


@pytest.fixture(scope="module")
def walked(serve: Callable[..., Service]) -> Service:
    return serve("walked", gateways=2)


@pytest.fixture
def load(walked: Service, under_load: Any) -> Iterator[Load]:
    with under_load(walked, streams=8) as load:
        yield load
    assert load.failures == []


def scale(service: Service, **sizes: int) -> None:
    for role, replicas in sizes.items():
        service.scale(role, replicas)
    for role, replicas in sizes.items():
        service.until_pods(role, replicas)


def events(service: Service) -> set[str]:
    """Reasons of all that is told of it."""
    found = service.namespace.list("events.events.k8s.io")
    return {str(each["reason"]) for each in found if each["regarding"].get("name") == service.name}


def test_the_walk_of_a_new_operator_while_the_token_is_replaced(walked: Service, load: Load) -> None:
    walked.namespace.kubectl(
        "annotate", "inferenceservice", walked.name, "serving.legato.dev/rotate-token=walk", "--overwrite"
    )
    scale(walked, prefill=2, decode=2)
    for role in ROLES:
        victim, *_ = walked.found(role)
        walked.namespace.kubectl("delete", "pod", victim["metadata"]["name"], "--wait=false")
        walked.until_gone(victim)
        walked.until_pods(role, 2)
    before = walked.workers()
    walked.patch({"engine": {"chunkTokens": 256}})
    kube.until(lambda: not before & walked.workers(), "all workers are of the new revision")
    for role in ROLES:
        walked.until_pods(role, 2)
    walked.until_settled()
    with draining(node_of(walked.found("decode")[0])):
        load.until_more(8)
    for role in ROLES:
        walked.until_pods(role, 2)
    scale(walked, prefill=1, decode=1)
    kube.until(lambda: "TokenRotated" in events(walked), "the token has been replaced", patience=ROTATION)
    load.until_more(16)


def test_a_node_is_drained_while_a_pool_is_capped(walked: Service, load: Load, namespace: Namespace) -> None:
    """A wish for more workers than the manifest allows is no reason to keep those that there are on their node."""
    walked.patch({"scaling": {"decode": {"max": 1}}})
    walked.scale("decode", 3)
    kube.until(lambda: walked.condition("Progressing").get("reason") == "Capped", "the pool is capped")
    budget = namespace.get("poddisruptionbudget", f"{walked.name}-decode")
    assert json.dumps(budget["spec"]["minAvailable"]) == "0"
    (only,) = walked.found("decode")
    with draining(node_of(only)):
        walked.until_gone(only)
    walked.until_pods("decode", 1)
    load.until_more(8)
