"""The gateway's health port, for the kubelet and Prometheus: `/healthz`, `/readyz`, `/metrics`.

Load balancers use the two probes at the public port. It has no metrics: they name workers and reveal the load. There
are also `/version` and `/load`, as in vLLM, and `/docs`, a page that shows `/openapi.json`.
"""

import base64
import hashlib
import re
from importlib import metadata, resources
from typing import Any, Final

from fastapi import APIRouter
from msgspec.json import encode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from legato_gateway.clients.identify import Clients
from legato_gateway.http.state import State
from legato_gateway.serving import openapi

VERSION: Final = metadata.version("legato")
_UNREADY: Final[openapi.Shown] = {503: {"description": "No request can be served; `why` says why"}}
_FILE: Final = "docs.html"
_INLINE: Final = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)


def create(status: State) -> Starlette:
    """Returns the application of the health port."""

    async def metrics(_request: Request) -> Response:
        body, kind = status.metrics()
        return Response(body, media_type=kind)

    return Starlette(routes=[*probes(status), Route("/metrics", metrics)])


def probes(status: State) -> list[Route]:
    """Returns the probes. `/healthz`: this process is alive. `/readyz`: requests are served, or queued for the next
    worker; else 503 with the reason. `/health` and `/ping` answer the same, as in vLLM."""

    async def healthz(_request: Request) -> Response:
        return _json({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        why = status.unready()
        return _json({"ready": why is None, "why": why or ""}, 200 if why is None else 503)

    alike = [Route("/health", readyz), Route("/ping", readyz, methods=["GET", "POST"])]
    return [Route("/healthz", healthz), Route("/readyz", readyz), *alike]


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


def router(status: State, clients: Clients) -> APIRouter:
    """Returns the routes, with probes for `/openapi.json`. `/version` and `/load` require an API key, if keys exist."""
    routes = APIRouter()

    @routes.get("/version", responses=openapi.errors())
    async def version(request: Request) -> dict[str, str]:
        """The release of this gateway."""
        clients.identify(request.scope)
        return {"version": VERSION}

    @routes.get("/load", responses=openapi.errors())
    async def load(request: Request) -> dict[str, int]:
        """The number of requests in progress in this gateway."""
        clients.identify(request.scope)
        return {"server_load": status.load()}

    for probe in probes(status):
        for method in sorted((probe.methods or set()) & {"GET", "POST"}):
            shown: dict[str, Any] = {"operation_id": f"{probe.name}_{probe.path[1:]}_{method.lower()}"}
            shown["responses"] = _UNREADY if probe.name == "readyz" else {}
            routes.add_api_route(probe.path, probe.endpoint, methods=[method], response_model=None, **shown)
    return routes


def docs_page() -> Route:
    """Returns `/docs`: a file that is read once. It has no data, and its policy allows only the content of the file."""
    content = (resources.files("legato_gateway.http") / _FILE).read_text()
    policies = ["default-src 'none'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'"]
    for kind, inline in _INLINE.findall(content):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        policies.append(f"{kind}-src 'sha256-{digest}'")
    headers = {
        "content-security-policy": "; ".join([*policies, "frame-ancestors 'none'"]),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }

    async def answer(_request: Request) -> Response:
        return Response(content, media_type="text/html", headers=headers)

    return Route("/docs", answer)
