"""The page on this machine: its own token guards all data, and the service's token stays inside."""

import asyncio
import contextlib

import aiohttp
import pytest
from aiohttp import web

from legato_cli.ui import proxy
from legato_cli.ui.target import GatewayTarget, NoTarget, UITarget

SERVICE = {"name": "chat", "namespace": "prod", "conditions": [], "scaling": {"pools": {}}}
LIMIT = 20  # seconds: a hang is a failure


class FakeGateway:
    """A control port that wants the token "secret"."""

    def __init__(self, name):
        self.name = name
        self.asked = []
        self.begun, self.cancelled = asyncio.Event(), asyncio.Event()
        self.breaks = False

    async def answer(self, request):
        self.asked.append((request.path_qs, request.headers.get("authorization", "")))
        if request.path == "/ui":
            return web.Response(text="page", headers={"content-security-policy": "default-src 'none'", "x-own": "1"})
        if request.headers.get("authorization") != "Bearer secret":
            return web.json_response({"error": "token"}, status=401)
        if request.path == "/ui/state":
            return web.json_response({"gateways": [{"gateway": self.name}], "service": None})
        return await self._stream(request)

    async def _stream(self, request):
        response = web.StreamResponse(headers={"x-request-id": "r1", "content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: " + await request.read() + b"\n\n")
        self.begun.set()
        if self.breaks:
            request.transport.abort()
            return response
        if b"wait" in await request.read():
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        return response


class KnownTarget:
    def __init__(self, *addresses):
        self.target = UITarget(tuple(GatewayTarget(f"g{i}", at) for i, at in enumerate(addresses)), "secret", SERVICE)

    async def find(self):
        if isinstance(self.target, Exception):
            raise self.target
        return self.target


@contextlib.asynccontextmanager
async def _serving(gateway):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", gateway.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _page(*gateways, silent=()):
    """A client of the proxy in front of these gateways, the header that it wants, and the target."""
    async with asyncio.timeout(LIMIT), contextlib.AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(_serving(gateway)) for gateway in gateways]
        targets = KnownTarget(*addresses, *silent)
        url = await stack.enter_async_context(proxy.listening(targets, 0))
        base, _, token = url.partition("/ui#token=")
        client = await stack.enter_async_context(aiohttp.ClientSession(base))
        yield client, {"authorization": f"Bearer {token}"}, targets


def _run(test):
    asyncio.run(test())


@pytest.mark.parametrize("path", ["/ui/state", "/v1/models"])
@pytest.mark.parametrize("shown", ["", "Bearer secret", "Bearer ", "Bearer é"])
def test_data_needs_the_token_of_this_page_and_not_that_of_the_service(path, shown):
    async def test():
        gateway = FakeGateway("a")
        async with _page(gateway) as (client, _, _):
            async with client.get(path, headers={"authorization": shown} if shown else {}) as answer:
                assert answer.status == 401
            assert not gateway.asked

    _run(test)


def test_the_page_comes_from_the_gateway_without_any_token():
    async def test():
        gateway = FakeGateway("a")
        async with _page(gateway) as (client, _, _), client.get("/") as answer:
            assert await answer.text() == "page"
            assert answer.headers["content-security-policy"] == "default-src 'none'"
            assert "x-own" not in answer.headers
            assert gateway.asked == [("/ui", "")]

    _run(test)


def test_the_state_of_all_gateways_comes_with_what_was_decided():
    async def test():
        first, second = FakeGateway("a"), FakeGateway("b")
        async with (
            _page(first, second) as (client, headers, _),
            client.get("/ui/state?since=5", headers=headers) as answer,
        ):
            text = await answer.text()
            assert "secret" not in text
            assert await answer.json() == {
                "gateways": [{"gateway": "a"}, {"gateway": "b"}],
                "service": SERVICE,
                "problem": "",
            }
            assert first.asked == second.asked == [("/ui/state?since=5", "Bearer secret")]

    _run(test)


def test_a_gateway_that_does_not_answer_is_named_and_the_others_are_shown():
    async def test():
        async with _page(FakeGateway("a"), silent=["127.0.0.1:1"]) as (client, headers, _):
            async with client.get("/ui/state", headers=headers) as answer:
                told = await answer.json()
            assert [gateway["gateway"] for gateway in told["gateways"]] == ["a"]
            assert told["problem"] == "does not answer: g1"

    _run(test)


def test_without_a_gateway_the_reason_is_told():
    async def test():
        async with _page(silent=["127.0.0.1:1"]) as (client, headers, _):
            for path in ("/ui/state", "/v1/models", "/ui"):
                async with client.get(path, headers=headers) as answer:
                    assert answer.status == 502
                    assert "answer" in (await answer.json())["error"]

    _run(test)


def test_a_service_that_is_gone_is_told_and_may_come_back(monkeypatch):
    monkeypatch.setattr(proxy, "FRESH", 0.0)

    async def test():
        async with _page(FakeGateway("a")) as (client, headers, targets):
            known, targets.target = targets.target, NoTarget("no service is running")
            async with client.get("/ui/state", headers=headers) as answer:
                assert (answer.status, await answer.json()) == (502, {"error": "no service is running"})
            targets.target = known
            async with client.get("/ui/state", headers=headers) as answer:
                assert answer.status == 200

    _run(test)


def test_an_answer_streams_through_with_the_services_token():
    async def test():
        gateway = FakeGateway("a")
        async with _page(gateway) as (client, headers, _):
            async with client.post("/v1/chat/completions", headers=headers, data=b"ask") as answer:
                assert await answer.read() == b"data: ask\n\n"
                assert answer.headers["x-request-id"] == "r1"
            assert gateway.asked == [("/v1/chat/completions", "Bearer secret")]

    _run(test)


def test_a_browser_that_leaves_stops_the_work():
    async def test():
        gateway = FakeGateway("a")
        async with _page(gateway) as (client, headers, _):
            answer = await client.post("/v1/chat/completions", headers=headers, data=b"wait")
            await gateway.begun.wait()
            answer.close()
            await gateway.cancelled.wait()

    _run(test)


def test_an_answer_that_breaks_off_does_not_look_complete():
    async def test():
        gateway = FakeGateway("a")
        gateway.breaks = True
        async with _page(gateway) as (client, headers, _):
            with pytest.raises(aiohttp.ClientError):
                async with client.post("/v1/chat/completions", headers=headers, data=b"ask") as answer:
                    await answer.read()

    _run(test)


def test_what_is_served_beside_the_page_needs_no_token():
    async def test():
        async def answer(_request):
            return web.Response(text="legato_operator_leader 1.0")

        async with (
            asyncio.timeout(LIMIT),
            proxy.listening(KnownTarget(), 0, [web.get("/metrics", answer)]) as url,
            aiohttp.ClientSession() as client,
            client.get(url.replace("/ui#", "/metrics#")) as told,
        ):
            assert await told.text() == "legato_operator_leader 1.0"

    _run(test)


def test_it_listens_on_loopback_alone():
    async def test():
        async with _page(FakeGateway("a")) as (client, _, _):
            assert client._base_url.host == "127.0.0.1"

    _run(test)
