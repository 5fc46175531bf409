"""A span per generating request, from its arrival to the last byte of its answer, as a child of the client's span.

The request's handler sees the span as its parent in the header `traceparent`, as if this were a separate hop.
"""

from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from legato_gateway.access_log import SPAN, client_request_id
from legato_protocol import names

if TYPE_CHECKING:
    from legato_telemetry.spans import OpenSpan, Tracing

TRACED: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"})
_PARENT: Final = names.HEADER_TRACE.encode()
_SERVER_FAULT: Final = 500  # a server's span fails with statuses from here on


class TraceRequests:
    """ASGI middleware. Names and attributes follow OpenTelemetry's conventions for HTTP servers."""

    def __init__(self, app: ASGIApp, tracing: "Tracing") -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in TRACED:
            await self._app(scope, receive, send)
            return
        span = self._begin(scope)
        headers = [pair for pair in scope["headers"] if pair[0] != _PARENT]
        if span is None:  # the client or the sampler declined
            await self._app({**scope, "headers": headers}, receive, send)
            return
        headers.append((_PARENT, span.traceparent.encode()))

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                _answered(span, message["status"])
            await send(message)

        try:
            await self._app({**scope, "headers": headers, SPAN: span}, receive, noting)
        except Exception:
            _answered(span, _SERVER_FAULT)  # the answer that an outer layer sends
            raise
        finally:
            span.end()

    def _begin(self, scope: Scope) -> "OpenSpan | None":
        headers = Headers(scope=scope)
        method, path = scope["method"], scope["path"]
        attributes = {"http.request.method": method, "http.route": path, "url.path": path, "url.scheme": "http"}
        if (given := client_request_id(scope)) is not None:
            attributes["http.request.header.x-request-id"] = given
        parent, state = headers.get(names.HEADER_TRACE, ""), headers.get("tracestate", "")
        return self._tracing.start(f"{method} {path}", "server", parent, attributes, state=state)


def _answered(span: "OpenSpan", status: int) -> None:
    span.set({"http.response.status_code": status})
    if status >= _SERVER_FAULT:
        span.fail(str(status))
