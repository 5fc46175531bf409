"""Authentication of the control port by one of the service's tokens."""

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from legato_protocol.security.followed_tokens import ServiceTokens


class TokenAuth:
    """Middleware that requires a service token as a bearer token.

    Without tokens every request is allowed; settings then allow only loopback addresses. `refused` gets the client and
    path of each refusal.
    """

    def __init__(self, app: ASGIApp, tokens: ServiceTokens, refused: Callable[[str], None]) -> None:
        self._app = app
        self._tokens = tokens
        self._refused = refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._tokens.takes(Headers(scope=scope).get("authorization", "")):
            await self._app(scope, receive, send)
            return
        host, _ = scope.get("client") or ("an unknown address", 0)
        self._refused(f"{host} at {scope['path']}")
        answer = JSONResponse({"error": "missing or invalid bearer token: this port requires the service token"}, 401)
        await answer(scope, receive, send)
