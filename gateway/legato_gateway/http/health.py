"""The gateway's health port, for the kubelet and Prometheus: `/healthz`, `/readyz`, `/metrics`.

Load balancers ask the two probes at the public port. Metrics are not there: they name workers and tell of the load.
"""

from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from legato_gateway.json_encoding import encode


class StatusSource(Protocol):
    """What is asked."""

    def unready(self) -> str | None:
        """Why no worker can serve now, or None."""

    def load(self) -> int:
        """Requests that are under way in this gateway, those that are held included."""

    def metrics(self) -> tuple[bytes, str]:
        """What `/metrics` shows, and its content type."""


def create(status: StatusSource) -> Starlette:
    """The application of the health port."""

    async def metrics(_request: Request) -> Response:
        body, kind = status.metrics()
        return Response(body, media_type=kind)

    return Starlette(routes=[*probes(status), Route("/metrics", metrics)])


def probes(status: StatusSource) -> list[Route]:
    """`/healthz`: this process lives. `/readyz`: requests are served, or held for the next worker; else 503 with the
    reason. `/health` and `/ping` say the same, as they do in vLLM."""

    async def healthz(_request: Request) -> Response:
        return _json({"status": "ok"})

    async def readyz(_request: Request) -> Response:
        why = status.unready()
        return _json({"ready": why is None, "why": why or ""}, 200 if why is None else 503)

    alike = [Route("/health", readyz), Route("/ping", readyz, methods=["GET", "POST"])]
    return [Route("/healthz", healthz), Route("/readyz", readyz), *alike]


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")
