"""`/metrics` over HTTP."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST


def handler(text: Callable[[], bytes]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Returns a handler that answers with the result of `text`."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return answer
