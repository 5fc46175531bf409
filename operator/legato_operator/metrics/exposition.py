"""`/metrics` over HTTP."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST


def handler(text: Callable[[], bytes]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Answers with what `text` gives."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return answer
