"""The gateway's control port, for the operator, `legato ui` and `legato state`. It requires the service's token.

One server serves it and the public port. A connection's port decides which paths it can call.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec.json import encode
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from legato_gateway.clients.identify import TRUSTED
from legato_gateway.http.demand_report import DemandWatch
from legato_gateway.ui import routes
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.wire import canary, demand
from legato_protocol.wire.canary import CANARY_PATH, Canary
from legato_protocol.wire.demand import DEMAND_PATH, SEEN, WAIT, DemandReport

API: Final = "/v1/"


def create(
    report: Callable[[], DemandReport],
    state: Callable[[], dict[str, Any]],
    ui: Callable[[float], dict[str, Any]],
    public: ASGIApp,
    tokens: ServiceTokens,
    refused: Callable[[str], None],
    watch: DemandWatch,
    set_canary: Callable[[Canary | None], None],
) -> ASGIApp:
    """Returns the application: `GET /demand`, `GET /state`, `PUT` and `DELETE /canary`, the page at `/ui`, and for its
    playground the API of `public`.

    `GET /demand?wait=SECONDS&seen=DIGEST` answers once the report's digest differs, or after that time, at most
    `LONGEST_WAIT`.

    Without tokens everyone is let in; settings then allow loopback only. `refused` is called with rejected callers.
    """

    async def get_demand(request: Request) -> Response:
        try:
            seconds = float(request.query_params.get(WAIT, 0.0))
        except ValueError:
            return JSONResponse({"error": f"{WAIT}: a number of seconds is expected"}, 400)
        if seconds > 0:
            seen = request.query_params.get(SEEN)
            await watch.wait(lambda: report().digest != seen, seconds, request.receive)
        return Response(demand.encode(report()), media_type="application/json")

    async def get_state(_request: Request) -> Response:
        return Response(encode(state()), media_type="application/json")

    reading = [Route(DEMAND_PATH, get_demand), Route("/state", get_state)]
    own = Starlette(routes=[*reading, _canary_route(set_canary), *routes.routes(ui)])

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if path not in routes.OPEN and not tokens.takes(Headers(scope=scope).get("authorization", "")):
            host, _ = scope.get("client") or ("an unknown address", 0)
            refused(f"{host} at {path}")
            text = "missing or invalid bearer token: this port requires the service token"
            await JSONResponse({"error": text}, 401)(scope, receive, send)
        elif path.startswith(API):
            await public({**scope, TRUSTED: True}, receive, send)
        else:
            await own(scope, receive, send)

    return guarded


def _canary_route(set_canary: Callable[[Canary | None], None]) -> Route:
    async def change(request: Request) -> Response:
        try:
            set_canary(canary.decode(await request.body()) if request.method == "PUT" else None)
        except canary.BadCanary as error:
            return JSONResponse({"error": f"not a canary: {error}"}, 400)
        return Response(status_code=204)

    return Route(CANARY_PATH, change, methods=["PUT", "DELETE"])


class ByPort:
    """Passes connections at one of the ports of `own` to the application there, and all others to `public`."""

    def __init__(self, public: ASGIApp, own: Mapping[int, ASGIApp]) -> None:
        self._public = public
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        await (self._own.get(server[1], self._public) if server is not None else self._public)(scope, receive, send)
