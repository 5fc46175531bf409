"""The operator's small HTTP server for kubelet and Prometheus."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from legato_operator.metrics import exposition
from legato_protocol import listening

BACKLOG = 128

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Check = Callable[[], str]  # what is wrong; empty when nothing is


@dataclass(frozen=True)
class Checks:
    alive: Check
    ready: Check
    metrics: Callable[[], bytes]


@contextlib.asynccontextmanager
async def serving(port: int, checks: Checks) -> AsyncIterator[int]:
    """Answers while it is open, at the port that it gives. Raises OSError when the port cannot be had."""
    application = web.Application()
    application.router.add_get("/healthz", _answer(checks.alive))
    application.router.add_get("/readyz", _answer(checks.ready))
    application.router.add_get("/metrics", exposition.handler(checks.metrics))
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
        wrong = check()
        return web.Response(status=503 if wrong else 200, text=wrong or "ok")

    return answer
