"""The gateway's HTTP application for clients: the API and the mapping of errors, composed of its collaborators."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from legato_gateway import access_log, errors
from legato_gateway.access_log import CLIENT_LEFT, AccessEntry, AccessLog, EchoRequestId
from legato_gateway.anthropic import errors as anthropic_errors
from legato_gateway.anthropic import messages as anthropic_messages
from legato_gateway.errors import GatewayError, HeadersTooLarge, InternalFault, NotFound
from legato_gateway.http import cors, health, models
from legato_gateway.http.state import State
from legato_gateway.http.tracing import TraceRequests
from legato_gateway.openai import routes, tokenization
from legato_gateway.openai.responses import routes as response_routes
from legato_gateway.openai.responses.store import ResponseStore
from legato_gateway.serving.context import ServingContext

if TYPE_CHECKING:
    from legato_telemetry.spans import Tracing

MAX_HEADERS = 100
MAX_HEADER_BYTES = 32_768
_CODES = {404: "not_found", 405: "method_not_allowed"}


@dataclass(frozen=True, slots=True)
class Parts:
    """The collaborators of the application. `log_access` is called with an entry for each request."""

    serving: ServingContext
    status: State
    log_access: Callable[[AccessEntry], None] | None = None
    tracing: "Tracing | None" = None
    responses: ResponseStore | None = None  # None: responses are not stored
    allowed_origins: tuple[str, ...] = ()


def create(parts: Parts) -> FastAPI:
    """Returns the application. Serve it with `protocol.factory`."""
    app = FastAPI(title="Legato gateway", version=health.VERSION, docs_url=None, redoc_url=None, redirect_slashes=False)
    serving = parts.serving
    app.include_router(routes.router(serving))
    app.include_router(response_routes.router(serving, parts.responses))
    app.include_router(anthropic_messages.router(serving))
    app.include_router(models.router(serving))
    app.include_router(tokenization.router(serving))
    app.include_router(health.router(parts.status, serving.clients))
    app.router.routes.extend([*health.probes(parts.status), health.docs_page()])
    _add_error_handlers(app)
    app.add_middleware(HeaderLimit)
    app.add_middleware(ServerErrorMiddleware, handler=_unknown)  # inside CORS: starlette's own is outermost
    if parts.allowed_origins:
        cors.allow(app, parts.allowed_origins)
    app.add_middleware(EchoRequestId)
    if parts.tracing is not None:
        app.add_middleware(TraceRequests, tracing=parts.tracing)
    if parts.log_access is not None:
        app.add_middleware(AccessLog, write=parts.log_access, clock=serving.clock)
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
                await error_response(HeadersTooLarge(text), scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def error_response(error: GatewayError, scope: Scope) -> Response:
    """Returns `error` as an HTTP response, in the format of the API that the request uses."""
    is_anthropic = anthropic_errors.has(scope["path"], Headers(scope=scope))
    body = anthropic_errors.body(error) if is_anthropic else errors.body(error)
    return Response(body, error.http_status, error.headers, "application/json")


def _add_error_handlers(app: FastAPI) -> None:
    async def known(request: Request, error: Exception) -> Response:
        assert isinstance(error, GatewayError)
        access_log.note_refusal(request.scope, error)
        return error_response(error, request.scope)

    async def routing_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = _CODES.get(error.status_code, "invalid_request")
        said = NotFound(f"{error.detail}: {request.method} {request.url.path}", code=code, status=error.status_code)
        response = error_response(said, request.scope)
        response.headers.update(error.headers or {})
        return response

    async def left(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_LEFT)

    app.add_exception_handler(GatewayError, known)
    app.add_exception_handler(HTTPException, routing_error)
    app.add_exception_handler(ClientDisconnect, left)


async def _unknown(request: Request, _: Exception) -> Response:
    """Answers an unexpected error. It is raised again for the server to log."""
    return error_response(InternalFault("the gateway failed to handle this request"), request.scope)
