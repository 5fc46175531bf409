"""The gateway's health port, for the kubelet and Prometheus: `/healthz`, `/readyz`, `/metrics`.

Load balancers use the two probes at the public port. It has no metrics: they name workers and reveal the load.
"""

from typing import Any

from msgspec.json import encode
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from legato_gateway.http.state import State


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
