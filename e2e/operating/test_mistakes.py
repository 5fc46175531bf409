"""Mistakes of those who operate a service, with streams through two gateways: none fails, and each mistake is told."""

import base64
import json
from collections.abc import Callable

import kube
import pytest
from load import Load
from service import Service


@pytest.fixture(scope="module")
def operated(serve: Callable[..., Service]) -> Service:
    return serve("mistaken", gateways=2)


def test_a_worker_is_replaced_after_an_edit_that_cannot_be_had(operated: Service, load: Load) -> None:
    """The last manifest that could be had goes on being reconciled, and the status says so of the newest."""
    operated.scale("decode", 2)
    operated.until_pods("decode", 2)
    operated.patch({"decode": {"parallelism": {"tensor": 2}}})
    kube.until(lambda: operated.condition("Progressing").get("reason") == "NotAvailable", "the edit is refused")
    assert "spec.decode.parallelism.tensor" in operated.condition("Progressing")["message"]
    before, victim = operated.workers(), operated.found("decode")[0]
    operated.namespace.kubectl("delete", "pod", victim["metadata"]["name"], "--wait=false")
    operated.until_gone(victim)
    operated.until_pods("decode", 2)
    assert len(before & operated.workers()) == 2, "no other worker was touched"
    operated.scale("decode", 1)
    operated.until_pods("decode", 1)
    operated.scale("prefill", 2)
    operated.until_pods("prefill", 2)
    assert operated.condition("Progressing")["reason"] == "NotAvailable"
    operated.patch({"decode": {"parallelism": None}})
    operated.until_settled()
    load.until_more(8)


def test_the_token_s_secret_is_deleted_then_edited(operated: Service, load: Load) -> None:
    token = data(operated)["token"]
    operated.namespace.kubectl("delete", "secret", f"{operated.name}-token")
    kube.until(lambda: data(operated).get("token") == token, "the Secret is as it was")
    operated.until_event("TokenRestored", "its loss is told")
    written = {"data": {"token": base64.b64encode(b"written-by-hand").decode()}}
    operated.namespace.kubectl("patch", "secret", f"{operated.name}-token", "--type=merge", "-p", json.dumps(written))
    operated.until_event("TokenEdited", "the edit is told")
    operated.until_refreshed(lambda: operated.has_event("TokenRotated"), "all use what was written")
    assert data(operated) == {"token": b"written-by-hand"}
    operated.until_settled()
    load.until_more(16)


def data(service: Service) -> dict[str, bytes]:
    """What the Secret of its token holds now."""
    found = service.namespace.list("secrets", f"serving.legato.dev/service={service.name}")
    held = next((each.get("data", {}) for each in found if each["metadata"]["name"] == f"{service.name}-token"), {})
    return {key: base64.b64decode(value) for key, value in held.items()}
