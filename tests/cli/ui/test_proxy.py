"""The page on this machine: its own token guards all data, and the service's token stays inside."""

import asyncio
import contextlib

import aiohttp
import pytest
from aiohttp import web
from answering_server import serving

from legato_cli.ui import proxy
from legato_cli.ui.target import GatewayTarget, NoTarget, UITarget

SERVICE = {"name": "chat", "namespace": "prod", "conditions": [], "scaling": {"pools": {}}}
pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]  # a hang is a failure


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


class Page:
    """A browser's side of the page."""

    def __init__(self, client, token, targets):
        self.client, self.targets = client, targets
        self.headers = {"authorization": f"Bearer {token}"}

    async def get(self, path):
        async with self.client.get(path, headers=self.headers) as answer:
            return answer.status, await answer.json()

    def ask(self, question):
        return self.client.post("/v1/chat/completions", headers=self.headers, data=question)


@contextlib.asynccontextmanager
async def _page(*gateways, silent=()):
    """The page in front of these gateways, and of addresses where nobody answers."""
    async with contextlib.AsyncExitStack() as stack:
        addresses = [await stack.enter_async_context(serving(gateway.answer)) for gateway in gateways]
        targets = KnownTarget(*addresses, *silent)
        url = await stack.enter_async_context(proxy.listening(targets, 0))
        base, _, token = url.partition("/ui#token=")
        yield Page(await stack.enter_async_context(aiohttp.ClientSession(base)), token, targets)


@pytest.fixture
def gateway():
    return FakeGateway("a")


@pytest.fixture
async def page(gateway):
    async with _page(gateway) as page:
        yield page


@pytest.mark.parametrize("path", ["/ui/state", "/v1/models"])
@pytest.mark.parametrize("shown", ["", "Bearer secret", "Bearer ", "Bearer é"])
async def test_data_needs_the_token_of_this_page_and_not_that_of_the_service(path, shown, page, gateway):
    async with page.client.get(path, headers={"authorization": shown} if shown else {}) as answer:
        assert answer.status == 401
    assert not gateway.asked


async def test_the_page_comes_from_the_gateway_without_any_token_and_from_this_machine_only(page, gateway):
    assert page.client._base_url.host == "127.0.0.1"
    async with page.client.get("/") as answer:
        assert await answer.text() == "page"
        assert answer.headers["content-security-policy"] == "default-src 'none'"
        assert "x-own" not in answer.headers
    assert gateway.asked == [("/ui", "")]


async def test_the_state_of_all_gateways_comes_with_what_was_decided():
    first, second = FakeGateway("a"), FakeGateway("b")
    async with _page(first, second) as page:
        status, state = await page.get("/ui/state?since=5")
    assert "secret" not in str(state)
    gateways = [{"gateway": "a"}, {"gateway": "b"}]
    assert (status, state) == (200, {"gateways": gateways, "service": SERVICE, "problem": ""})
    assert first.asked == second.asked == [("/ui/state?since=5", "Bearer secret")]


async def test_a_gateway_that_does_not_answer_is_named_and_the_others_are_shown(gateway):
    async with _page(gateway, silent=["127.0.0.1:1"]) as page:
        _, state = await page.get("/ui/state")
    assert [each["gateway"] for each in state["gateways"]] == ["a"]
    assert state["problem"] == "does not answer: g1"


async def test_without_a_gateway_the_reason_is_given():
    async with _page(silent=["127.0.0.1:1"]) as page:
        for path in ("/ui/state", "/v1/models", "/ui"):
            status, answer = await page.get(path)
            assert status == 502
            assert "answer" in answer["error"]


async def test_a_service_that_is_gone_is_reported_and_may_come_back(monkeypatch, page):
    monkeypatch.setattr(proxy, "FRESH", 0.0)
    known, page.targets.target = page.targets.target, NoTarget("no service is running")
    assert await page.get("/ui/state") == (502, {"error": "no service is running"})
    page.targets.target = known
    assert (await page.get("/ui/state"))[0] == 200


async def test_an_answer_streams_through_with_the_services_token(page, gateway):
    async with page.ask(b"ask") as answer:
        assert await answer.read() == b"data: ask\n\n"
        assert answer.headers["x-request-id"] == "r1"
    assert gateway.asked == [("/v1/chat/completions", "Bearer secret")]


async def test_a_browser_that_leaves_stops_the_work(page, gateway):
    answer = await page.ask(b"wait")
    await gateway.begun.wait()
    answer.close()
    await gateway.cancelled.wait()


async def test_an_answer_that_breaks_off_does_not_look_complete(page, gateway):
    gateway.breaks = True
    with pytest.raises(aiohttp.ClientError):
        async with page.ask(b"ask") as answer:
            await answer.read()


async def test_what_is_served_alongside_the_page_needs_no_token():
    async def answer(_request):
        return web.Response(text="legato_operator_leader 1.0")

    async with (
        proxy.listening(KnownTarget(), 0, [web.get("/metrics", answer)]) as url,
        aiohttp.ClientSession() as client,
        client.get(url.replace("/ui#", "/metrics#")) as metrics,
    ):
        assert await metrics.text() == "legato_operator_leader 1.0"
