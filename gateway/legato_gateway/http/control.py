"""The gateway's control port, for the operator: open to who has the service's token, and to nobody else.

It is served beside the public port by one server. Which of the two a connection came in on decides what it can ask.
"""

import hmac
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from legato_protocol import demand
from legato_protocol.demand import DEMAND_PATH, DemandReport


def create(report: Callable[[], DemandReport], token: str) -> ASGIApp:
    """`GET /demand`. Without a token everyone is let in; settings then allow loopback only."""

    async def answer(_request: Request) -> Response:
        return Response(demand.encode(report()), media_type="application/json")

    return TokenRequired(Starlette(routes=[Route(DEMAND_PATH, answer)]), token)


class TokenRequired:
    """Refuses who does not show the service's token as a bearer token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._expected is None or self._is_authorized(scope):
            await self._app(scope, receive, send)
            return
        text = "missing or invalid bearer token: this port requires the service token"
        await JSONResponse({"error": text}, 401)(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        shown = Headers(scope=scope).get("authorization", "")
        return hmac.compare_digest(shown.encode(), self._expected or b"")


class ByPort:
    """Gives what came in on `port` to `control`, and everything else to `public`."""

    def __init__(self, public: ASGIApp, control: ASGIApp, port: int | None) -> None:
        self._public = public
        self._control = control
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        at_control = self._port is not None and server is not None and server[1] == self._port
        await (self._control if at_control else self._public)(scope, receive, send)
