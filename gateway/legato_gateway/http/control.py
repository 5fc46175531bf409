"""The gateway's control port, for the operator, `legato ui` and `legato state`: it asks for the service's token.

It is served beside the public port by one server. The port that a connection came in on decides what it can ask.
"""

import hmac
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from legato_gateway.clients.identify import TRUSTED
from legato_gateway.openai.sse import encode
from legato_gateway.ui import routes
from legato_protocol import demand
from legato_protocol.demand import DEMAND_PATH, DemandReport

API: Final = "/v1/"


def create(
    report: Callable[[], DemandReport],
    state: Callable[[], dict[str, Any]],
    ui: Callable[[float], dict[str, Any]],
    public: ASGIApp,
    token: str,
) -> ASGIApp:
    """`GET /demand`, `GET /state`, the page at `/ui`, and for its playground the API of `public`.

    Without a token everyone is let in; settings then allow loopback only.
    """

    async def get_demand(_request: Request) -> Response:
        return Response(demand.encode(report()), media_type="application/json")

    async def get_state(_request: Request) -> Response:
        return Response(encode(state()), media_type="application/json")

    own = Starlette(routes=[Route(DEMAND_PATH, get_demand), Route("/state", get_state), *routes.routes(ui)])
    return TokenRequired(WithAPI(own, public), token, routes.OPEN)


class WithAPI:
    """Gives paths of the API to `public`, and everything else to `own`."""

    def __init__(self, own: ASGIApp, public: ASGIApp) -> None:
        self._own = own
        self._public = public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path", "").startswith(API):
            await self._public({**scope, TRUSTED: True}, receive, send)
        else:
            await self._own(scope, receive, send)


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
    """Gives what came in on one of the ports of `own` to the application there, and everything else to `public`."""

    def __init__(self, public: ASGIApp, own: Mapping[int, ASGIApp]) -> None:
        self._public = public
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        await (self._own.get(server[1], self._public) if server is not None else self._public)(scope, receive, send)
