"""The operator's HTTP server for the kubelet and Prometheus."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from legato_protocol.process import listening

BACKLOG = 128

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Check = Callable[[], str]  # returns the problem, or an empty text


@dataclass(frozen=True)
class Checks:
    alive: Check
    ready: Check
    metrics: Answer


@contextlib.asynccontextmanager
async def serving(port: int, checks: Checks) -> AsyncIterator[int]:
    """Serves while it is open, and yields its port. Raises OSError if the port cannot be bound."""
    application = web.Application()
    application.router.add_get("/healthz", _answer(checks.alive))
    application.router.add_get("/readyz", _answer(checks.ready))
    application.router.add_get("/metrics", checks.metrics)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        listener = listening.listen(listening.EVERY_ADDRESS, port, BACKLOG)
        await web.SockSite(runner, listener).start()
        yield int(listener.getsockname()[1])
    finally:
        await runner.cleanup()


def _answer(check: Check) -> Answer:
    async def answer(_request: web.Request) -> web.StreamResponse:
        problem = check()
        return web.Response(status=503 if problem else 200, text=problem or "ok")

    return answer
