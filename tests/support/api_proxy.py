"""A proxy of the API server on which a test answers calls itself, for what only a busy or aged server says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import aiohttp
import control_plane
from aiohttp import web

Answer = Callable[[web.Request], web.StreamResponse | None]
FAILURE = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
GONE = FAILURE | {"reason": "Expired", "code": 410, "message": "too old"}


class ApiProxy:
    """Passes on calls that `answer` does not answer. `url` is plain HTTP, so that they can be read."""

    def __init__(self, api: control_plane.ApiServer) -> None:
        self._api = api
        self._watches: set[asyncio.Task[None]] = set()
        self.answer: Answer = lambda request: None
        self.url = ""

    def end_watches(self) -> None:
        for task in self._watches:
            task.cancel()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        answered = self.answer(request)
        if answered is not None:
            return answered
        url = f"{self._api.url}{request.rel_url}"
        passed = ("Authorization", "Accept", "Content-Type")
        headers = {key: request.headers[key] for key in passed if key in request.headers}
        async with self._session.request(request.method, url, data=body or None, headers=headers, ssl=False) as there:
            if is_watch(request):
                return await self._stream(request, there)
            kept = {key: there.headers[key] for key in ("Content-Type", "Retry-After") if key in there.headers}
            return web.Response(status=there.status, body=await there.read(), headers=kept)

    async def _stream(self, request: web.Request, there: aiohttp.ClientResponse) -> web.StreamResponse:
        back = web.StreamResponse(status=there.status, headers={"Content-Type": there.content_type})
        await back.prepare(request)

        async def carry() -> None:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):  # either side left
                async for data in there.content.iter_any():
                    await back.write(data)

        self._watches.add(task := asyncio.create_task(carry()))
        try:
            await asyncio.wait((task,))
        finally:
            self._watches.discard(task)
            task.cancel()
        return back

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["ApiProxy"]:
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), auto_decompress=True) as self._session:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            try:
                yield self
            finally:
                self.end_watches()
                await runner.cleanup()


def is_watch(request: web.Request) -> bool:
    return request.query.get("watch") == "true"


def refusal(code: int, **headers: str) -> web.Response:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return web.json_response(FAILURE | {"code": code, "message": f"refused with {code}"}, status=code, headers=named)


def expired() -> web.Response:
    """A watch whose first event says that its version is too old."""
    return web.Response(text=json.dumps({"type": "ERROR", "object": GONE}) + "\n", content_type="application/json")
