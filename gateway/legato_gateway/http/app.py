"""The gateway's HTTP application: routes, probes and the mapping of errors, composed from what it is given."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from legato_gateway import errors
from legato_gateway.access_log import CLIENT_LEFT, AccessEntry, AccessLog
from legato_gateway.errors import GatewayError, HeadersTooLarge, InternalFault, NotFound
from legato_gateway.openai import routes
from legato_gateway.openai.preparation import PreparationPool
from legato_gateway.openai.serving import OpenAIServing, ServedModel, Tokenizer
from legato_gateway.openai.sse import encode
from legato_gateway.request import Relay

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32_768
MAX_BODY_BYTES = 8 << 20
_CODES = {404: "not_found", 405: "method_not_allowed"}


class StatusSource(Protocol):
    """What the probes ask."""

    def unready(self) -> str | None:
        """Why no worker can serve now, or None."""

    def state(self) -> dict[str, Any]:
        """What `/state` shows."""

    def metrics(self) -> tuple[bytes, str]:
        """What `/metrics` shows, and its content type."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The collaborators of the application. `default_deadline` and `clock` are in seconds; `log_access` is given an
    entry for each request."""

    tokens: Tokenizer
    relay: Relay
    status: StatusSource
    model: ServedModel
    default_deadline: float = 600.0
    max_body_bytes: int = MAX_BODY_BYTES
    clock: Callable[[], float] = time.monotonic
    log_access: Callable[[AccessEntry], None] | None = None


def create(parts: Parts) -> FastAPI:
    """The application. Serve it with `protocol.BoundedProtocol`."""
    app = FastAPI(title="Legato gateway", docs_url=None, redoc_url=None, redirect_slashes=False)
    serving = OpenAIServing(
        tokens=parts.tokens,
        relay=parts.relay,
        model=parts.model,
        default_deadline=parts.default_deadline,
        max_body_bytes=parts.max_body_bytes,
        clock=parts.clock,
        preparation=PreparationPool(),
    )
    app.include_router(routes.router(serving))
    _add_probes(app, parts.status)
    _add_error_handlers(app)
    app.add_middleware(HeaderLimit)
    if parts.log_access is not None:
        app.add_middleware(AccessLog, write=parts.log_access, clock=parts.clock)
    return app


class HeaderLimit:
    """Refuses requests with floods of headers before anything reads them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            raw = Headers(scope=scope).raw
            size = sum(len(name) + len(value) for name, value in raw)
            if len(raw) > MAX_HEADERS or size > MAX_HEADER_BYTES:
                text = f"{len(raw)} headers with {size} bytes; at most {MAX_HEADERS} with {MAX_HEADER_BYTES} are read"
                await error_response(HeadersTooLarge(text))(scope, receive, send)
                return
        await self._app(scope, receive, send)


def error_response(error: GatewayError) -> Response:
    """`error` as HTTP says it."""
    return Response(errors.body(error), error.http_status, error.headers, "application/json")


def _add_probes(app: FastAPI, status: StatusSource) -> None:
    @app.get("/healthz", response_model=None)
    async def healthz() -> Response:
        """This process lives."""
        return _json({"status": "ok"})

    @app.get("/readyz", response_model=None)
    async def readyz() -> Response:
        """Requests are served, or held for the next worker; else 503 with the reason."""
        why = status.unready()
        return _json({"ready": why is None, "why": why or ""}, 200 if why is None else 503)

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        """For Prometheus."""
        body, kind = status.metrics()
        return Response(body, media_type=kind)

    @app.get("/state", response_model=None)
    async def state() -> Response:
        """Workers and recent requests."""
        return _json(status.state())


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


def _add_error_handlers(app: FastAPI) -> None:
    async def known(_: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        return error_response(error)

    async def of_routing(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "invalid_request")
        said = NotFound(f"{error.detail}: {request.method} {request.url.path}", code=code, status=error.status_code)
        response = error_response(said)
        response.headers.update(error.headers or {})
        return response

    async def left(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)

    async def unknown(_: Request, __: Exception) -> Response:
        return error_response(InternalFault("the gateway failed to handle this request"))

    app.add_exception_handler(GatewayError, known)
    app.add_exception_handler(HTTPException, of_routing)
    app.add_exception_handler(ClientDisconnect, left)
    app.add_exception_handler(Exception, unknown)  # answered so, then raised on for the server to log
