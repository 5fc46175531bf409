"""The paths under `/ui`. The page contains no data, so browsers load it without a token; `/ui/state` needs one."""

import math
from collections.abc import Callable
from importlib import resources
from typing import Any, Final

from msgspec.json import encode
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PAGE: Final = "/ui"
STATE: Final = "/ui/state"
FILES: Final = {
    "index.html": "text/html; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "dom.js": "text/javascript; charset=utf-8",
    "fleet.js": "text/javascript; charset=utf-8",
    "playground.js": "text/javascript; charset=utf-8",
    "requests.js": "text/javascript; charset=utf-8",
    "timeline.js": "text/javascript; charset=utf-8",
}
OPEN: Final = frozenset({PAGE, *(f"{PAGE}/{name}" for name in FILES if name != "index.html")})
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


def routes(report: Callable[[float], dict[str, Any]]) -> list[Route]:
    """Returns the routes of the page's files and of its data: `report` takes Unix seconds. Files are read once."""
    static = resources.files("legato_gateway.ui") / "static"
    contents = {name: (static / name).read_bytes() for name in FILES}

    async def state(request: Request) -> Response:
        since = request.query_params.get("since", "0")
        try:
            seconds = float(since)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            return JSONResponse({"error": f"since: not a time: {since[:40]!r} (Unix seconds)"}, 400)
        return Response(encode(report(seconds)), media_type="application/json", headers=dict(HEADERS))

    def file(name: str) -> Callable[[Request], Any]:
        async def answer(_request: Request) -> Response:
            return Response(contents[name], headers={**HEADERS, "content-type": FILES[name]})

        return answer

    named = [Route(PAGE if name == "index.html" else f"{PAGE}/{name}", file(name)) for name in FILES]
    return [Route(STATE, state), *named]
