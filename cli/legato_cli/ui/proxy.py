"""Serves the UI on a loopback port: a gateway's files and API, and the state of all gateways and of the service.

Requests for data need a random token, new at each start; the service's own token never leaves this process.
"""

import asyncio
import contextlib
import hmac
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from legato_cli.errors import ServiceUnavailable
from legato_cli.ui.target import ControlTarget, TargetSource, UITarget

HOST: Final = "127.0.0.1"
PATIENCE: Final = aiohttp.ClientTimeout(total=5.0)
STREAMING: Final = aiohttp.ClientTimeout(total=None, sock_connect=5.0)
MAX_BODY: Final = 8 << 20  # bytes of a playground request
GOODBYE: Final = 1.0  # seconds for open answers at the end
FRESH: Final = 0.9  # seconds for which the target is cached: pages ask every second
_SHOWN: Final = frozenset(
    {
        "cache-control",
        "content-security-policy",
        "content-type",
        "referrer-policy",
        "retry-after",
        "x-content-type-options",
        "x-request-id",
    }
)


async def serve(source: AbstractAsyncContextManager[TargetSource], port: int) -> None:
    """Serves until it is cancelled.

    Raises ServiceUnavailable if the service is missing at the start, and OSError for the port.
    """
    async with source as targets, listening(targets, port) as url:
        print(f"{url}\nThe link holds the key to this page. Ctrl-C ends it.", flush=True)
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def listening(targets: TargetSource, port: int, routes: Iterable[web.RouteDef] = ()) -> AsyncIterator[str]:
    """Yields the page's URL with its token in the fragment. `routes` need no token.

    Raises ServiceUnavailable, OSError.
    """
    await targets.find()
    token = secrets.token_urlsafe(24)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        app = UIProxy(session, targets, token).app()
        app.add_routes(routes)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=GOODBYE)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, port)
            await site.start()
            yield f"http://{HOST}:{runner.addresses[0][1]}/ui#token={token}"
        finally:
            await runner.cleanup()


class UIProxy:
    """The handlers. `token` is required from browsers."""

    def __init__(self, session: aiohttp.ClientSession, targets: TargetSource, token: str) -> None:
        self._session = session
        self._targets = targets
        self._expected = f"Bearer {token}".encode()
        self._cached: UITarget | None = None
        self._read_at = 0.0  # on the loop's clock

    def app(self) -> web.Application:
        """Returns the routes: the page, its state, and the API for its playground."""
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_explained])
        app.router.add_get("/", self._root)
        app.router.add_get("/ui/state", self._state)
        app.router.add_get("/ui", self._page)
        app.router.add_get("/ui/{file}", self._page)
        app.router.add_route("*", "/v1/{path:.*}", self._api)
        return app

    async def _root(self, _request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/ui")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        """Forwards the page's files. They contain no data, so they need no token."""
        return await self._forward(request, await self._target(), {}, PATIENCE)

    async def _api(self, request: web.Request) -> web.StreamResponse:
        if not self._is_authorized(request):
            return _failed(401, "missing or invalid token: open the link that `legato ui` printed")
        target = await self._target()
        return await self._forward(request, target, _authorization(target), STREAMING)

    async def _state(self, request: web.Request) -> web.StreamResponse:
        if not self._is_authorized(request):
            return _failed(401, "missing or invalid token: open the link that `legato ui` printed")
        target, query = await self._target(), request.query_string
        asked = await asyncio.gather(*(self._ask(gateway, target, query) for gateway in target.gateways))
        gateways = [shown for answer in asked if answer is not None for shown in answer["gateways"]]
        if not gateways:
            return _failed(502, "no gateway of this service answers")
        pairs = zip(target.gateways, asked, strict=True)
        silent = [gateway.name for gateway, answer in pairs if answer is None]
        problem = f"does not answer: {', '.join(silent)}" if silent else ""
        return web.json_response({"gateways": gateways, "service": dict(target.service), "problem": problem})

    async def _target(self) -> UITarget:
        """Returns the target, at most `FRESH` seconds old. Raises ServiceUnavailable."""
        now = asyncio.get_running_loop().time()
        if self._cached is None or now >= self._read_at + FRESH:
            self._cached, self._read_at = await self._targets.find(), now
        return self._cached

    async def _ask(self, gateway: ControlTarget, target: UITarget, query: str) -> dict[str, Any] | None:
        """Returns a gateway's state, or None if it does not answer."""
        url = f"{gateway.url}/ui/state?{query}"
        try:
            async with self._session.get(
                url, headers=_authorization(target), timeout=PATIENCE, **gateway.trust
            ) as answer:
                state: dict[str, Any] | None = await answer.json() if answer.status == 200 else None
                return state
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None

    async def _forward(
        self, request: web.Request, target: UITarget, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> web.StreamResponse:
        """Forwards to the first gateway and streams its answer. Raises ServiceUnavailable."""
        if not target.gateways:
            raise ServiceUnavailable("no gateway of this service is ready")
        gateway, body = target.gateways[0], await request.read()
        sent = dict(headers) | {"content-type": request.headers.get("content-type", "application/json")}
        try:
            async with self._session.request(
                request.method,
                f"{gateway.url}{request.path_qs}",
                data=body,
                headers=sent,
                timeout=timeout,
                allow_redirects=False,
                **gateway.trust,
            ) as answer:
                kept = {name: value for name, value in answer.headers.items() if name.lower() in _SHOWN}
                response = web.StreamResponse(status=answer.status, headers=kept)
                await response.prepare(request)
                await _copy(answer.content, response, request)
                return response
        except (aiohttp.ClientConnectorError, TimeoutError) as error:
            raise ServiceUnavailable(f"gateway {target.gateways[0].name} does not answer: {error}") from None

    def _is_authorized(self, request: web.Request) -> bool:
        return hmac.compare_digest(request.headers.get("authorization", "").encode(), self._expected)


async def _copy(content: aiohttp.StreamReader, response: web.StreamResponse, request: web.Request) -> None:
    """Copies an answer. If it breaks off, the browser's connection is aborted: a clean end would look complete."""
    try:
        async for piece in content.iter_any():
            await response.write(piece)
        await response.write_eof()
    except aiohttp.ClientPayloadError:
        if request.transport is not None:
            request.transport.abort()


@web.middleware
async def _explained(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ServiceUnavailable as error:
        return _failed(502, str(error))


def _authorization(target: UITarget) -> dict[str, str]:
    return {"authorization": f"Bearer {target.token}"}


def _failed(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
