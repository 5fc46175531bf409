"""The parent of the spans within a request is its HTTP span."""

import asyncio
from typing import Any

import pytest
from trace_receiver import receiving

from legato_gateway.http.tracing import TraceRequests
from legato_telemetry.spans import Tracing

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _parent_seen(tracing: Tracing, path: str, *given: str) -> list[str]:
    """The traceparents that the application sees of a request with those."""
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(value.decode() for name, value in scope["headers"] if name == b"traceparent")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        pass

    headers = [(b"host", b"h"), *((b"traceparent", text.encode()) for text in given)]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    asyncio.run(TraceRequests(app, tracing)(scope, None, send))  # type: ignore[arg-type]
    return seen


def test_the_span_takes_the_place_of_the_client_s(monkeypatch):
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        tracing = Tracing("gateway", "g", pytest.fail)
        (seen,) = _parent_seen(tracing, "/v1/completions", CLIENT)
        assert _parent_seen(tracing, "/v1/models", CLIENT) == [CLIENT]
        tracing.close()
    (span,) = receiver.spans
    assert seen == f"00-{span.trace}-{span.id}-01"
    assert seen.split("-")[1] == CLIENT.split("-")[1]


def test_where_the_sampler_wants_none_nothing_behind_it_begins_one(monkeypatch):
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    tracing = Tracing("gateway", "g", pytest.fail)
    for path, parent in (("completions", CLIENT), ("responses", CLIENT), ("completions", "nonsense")):
        assert _parent_seen(tracing, f"/v1/{path}", parent) == []
    tracing.close()
