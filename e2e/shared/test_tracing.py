"""With an endpoint in the manifest, gateway and workers send their spans of a request to a collector."""

import secrets

import collector
import kube
from service import Service

PARENT = "b7ad6b7169203331"  # the client's span
NAMES = {"POST /v1/completions", "legato.admission", "legato.prefill", "legato.handoff", "legato.decode"}


def test_spans_of_gateway_and_both_workers_make_one_trace(service: Service) -> None:
    trace = secrets.token_hex(16)
    answer = service.client.completions.create(
        model=service.name,
        prompt="How does rain come about?",
        max_tokens=4,
        extra_headers={"traceparent": f"00-{trace}-{PARENT}-01"},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    kube.until(
        lambda: {span["name"] for span in collector.spans(service.namespace, trace)} >= NAMES, "all spans are there"
    )
    found = {span["name"]: span for span in collector.spans(service.namespace, trace)}
    assert found["POST /v1/completions"]["parent"] == PARENT
    assert found["POST /v1/completions"]["process"] == "legato-gateway"
    assert [found["legato.prefill"]["worker"]] == service.pods("prefill")
    assert [found["legato.decode"]["worker"]] == service.pods("decode")
    assert found["legato.prefill"]["parent"] == found["legato.decode"]["parent"] == found["legato.attempt"]["id"]
