"""Information about the server: `/version` and `/load`, as in vLLM, and the probes for `/openapi.json`."""

from importlib import metadata
from typing import Any, Final

from fastapi import APIRouter, Request

from legato_gateway.clients.identify import Clients
from legato_gateway.http import health
from legato_gateway.http.state import State
from legato_gateway.serving import openapi

VERSION: Final = metadata.version("legato")
_UNREADY: Final[openapi.Shown] = {503: {"description": "No request can be served; `why` says why"}}


def router(status: State, clients: Clients) -> APIRouter:
    """Returns the routes. `/version` and `/load` require an API key, if there are keys."""
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

    for probe in health.probes(status):
        for method in sorted((probe.methods or set()) & {"GET", "POST"}):
            shown: dict[str, Any] = {"operation_id": f"{probe.name}_{probe.path[1:]}_{method.lower()}"}
            shown["responses"] = _UNREADY if probe.name == "readyz" else {}
            routes.add_api_route(probe.path, probe.endpoint, methods=[method], response_model=None, **shown)
    return routes
