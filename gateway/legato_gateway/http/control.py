"""The gateway's control port, for the operator and `legato ui`: it answers only those who have the service's token.

It is served beside the public port by one server. Which of the two a connection came in on decides what it can ask.
"""

import hmac
from collections.abc import Callable, Collection
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from legato_gateway.ui import routes
from legato_protocol import demand
from legato_protocol.demand import DEMAND_PATH, DemandReport

API: Final = "/v1/"


def create(
    report: Callable[[], DemandReport], ui: Callable[[float], dict[str, Any]], public: ASGIApp, token: str
) -> ASGIApp:
    """`GET /demand`, the page at `/ui`, and for its playground the API of `public`.

    Without a token everyone is let in; settings then allow loopback only.
    """

    async def answer(_request: Request) -> Response:
        return Response(demand.encode(report()), media_type="application/json")

    own = Starlette(routes=[Route(DEMAND_PATH, answer), *routes.routes(ui)])
    return TokenRequired(WithAPI(own, public), token, routes.OPEN)


class WithAPI:
    """Gives paths of the API to `public`, and everything else to `own`."""

    def __init__(self, own: ASGIApp, public: ASGIApp) -> None:
        self._own = own
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._public if scope.get("path", "").startswith(API) else self._own
        await app(scope, receive, send)


class TokenRequired:
    """Refuses who does not show the service's token as a bearer token, except at the paths that are `open` to all."""

    def __init__(self, app: ASGIApp, token: str, open: Collection[str]) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode() if token else None
        self._open = open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._expected is None or scope.get("path") in self._open or self._is_authorized(scope):
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
