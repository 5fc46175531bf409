"""Mistakes of those who operate a service, with streams through two gateways: none fails, and each mistake is told."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import kube
import pytest
from load import Load
from service import Service

ROTATION = 420.0  # seconds: three times what a kubelet takes to write a Secret anew


@pytest.fixture(scope="module")
def mistaken(serve: Callable[..., Service]) -> Service:
    return serve("mistaken", gateways=2)


@pytest.fixture
def load(mistaken: Service, under_load: Any) -> Iterator[Load]:
    with under_load(mistaken, streams=8) as load:
        yield load
    assert load.failures == []


def test_a_worker_is_replaced_after_an_edit_that_cannot_be_had(mistaken: Service, load: Load) -> None:
    """The last manifest that could be had goes on being reconciled, and the status says so of the newest."""
    mistaken.scale("decode", 2)
    mistaken.until_pods("decode", 2)
    mistaken.patch({"decode": {"parallelism": {"tensor": 2}}})
    kube.until(lambda: mistaken.condition("Progressing").get("reason") == "NotAvailable", "the edit is refused")
    assert "spec.decode.parallelism.tensor" in mistaken.condition("Progressing")["message"]
    before, victim = mistaken.workers(), mistaken.found("decode")[0]
    mistaken.namespace.kubectl("delete", "pod", victim["metadata"]["name"], "--wait=false")
    mistaken.until_gone(victim)
    mistaken.until_pods("decode", 2)
    mistaken.scale("decode", 1)
    mistaken.until_pods("decode", 1)
    mistaken.scale("prefill", 2)
    mistaken.until_pods("prefill", 2)
    assert len(before & mistaken.workers()) == 2, "no other worker was touched"
    assert mistaken.condition("Progressing")["reason"] == "NotAvailable"
    mistaken.patch({"decode": {"parallelism": None}})
    mistaken.until_settled()
    load.until_more(8)


def test_the_token_s_secret_is_deleted_then_edited(mistaken: Service, load: Load) -> None:
    token = data(mistaken)["token"]
    mistaken.namespace.kubectl("delete", "secret", f"{mistaken.name}-token")
    kube.until(lambda: data(mistaken).get("token") == token, "the Secret is as it was")
    kube.until(lambda: "TokenRestored" in told(mistaken), "its loss is told")
    written = {"data": {"token": base64.b64encode(b"written-by-hand").decode()}}
    mistaken.namespace.kubectl("patch", "secret", f"{mistaken.name}-token", "--type=merge", "-p", json.dumps(written))
    kube.until(lambda: "TokenEdited" in told(mistaken), "the edit is told")
    kube.until(lambda: "TokenRotated" in told(mistaken), "all use what was written", patience=ROTATION)
    assert data(mistaken) == {"token": b"written-by-hand"}
    mistaken.until_settled()
    load.until_more(16)


def data(service: Service) -> dict[str, bytes]:
    """What the Secret of its token holds now."""
    found = service.namespace.list("secrets", f"serving.legato.dev/service={service.name}")
    held = next((each.get("data", {}) for each in found if each["metadata"]["name"] == f"{service.name}-token"), {})
    return {key: base64.b64decode(value) for key, value in held.items()}


def told(service: Service) -> set[str]:
    """Reasons of its Events."""
    found = service.namespace.list("events.events.k8s.io")
    return {str(each["reason"]) for each in found if each["regarding"].get("name") == service.name}
