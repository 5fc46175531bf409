"""The page on this machine: its own token guards all data, and the service's token stays inside.

Gateways on Kubernetes are reached by `kubectl`, which never outlives the page."""

import asyncio
import contextlib

import aiohttp
import psutil
import pytest
from answering_server import serving
from fake_gateway import FakeGateway
from local_services import DEMO, manifest, operations, store_pod

from legato_cli.errors import ServiceUnavailable
from legato_cli.local import admin
from legato_cli.ui import kubernetes, proxy, sources, target
from legato_cli.ui.kubernetes import KubernetesSource
from legato_cli.ui.target import ControlTarget, UITarget
from legato_operator.api import parsing
from legato_operator.cluster import Ref
from legato_operator.local.store import Store
from legato_operator.manifests import common, secret
from legato_protocol import names

pytestmark = pytest.mark.timeout(60)  # a hang is a failure
SERVICE = {"name": "chat", "namespace": "prod", "conditions": [], "scaling": {"pools": {}}}


class KnownTarget:
    def __init__(self, *addresses):
        self.target = UITarget(tuple(ControlTarget(f"g{i}", at) for i, at in enumerate(addresses)), "secret", SERVICE)

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
        body = {"messages": [{"content": question}]}
        return self.client.post("/v1/chat/completions", headers=self.headers, json=body)


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
    return FakeGateway()


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


async def test_the_state_of_all_gateways_that_answer_comes_with_what_was_decided():
    first, second = FakeGateway("a"), FakeGateway("b")
    async with _page(first, second, silent=["127.0.0.1:1"]) as page:
        status, state = await page.get("/ui/state?since=5")
    assert "secret" not in str(state)
    gateways, problem = [{"gateway": "a"}, {"gateway": "b"}], "does not answer: g2"
    assert (status, state) == (200, {"gateways": gateways, "service": SERVICE, "problem": problem})
    assert first.asked == second.asked == [("/ui/state?since=5", "Bearer secret")]


async def test_a_service_that_is_gone_is_reported_and_may_come_back(monkeypatch, page):
    monkeypatch.setattr(proxy, "FRESH", 0.0)
    known, page.targets.target = page.targets.target, ServiceUnavailable("no service is running")
    assert await page.get("/ui/state") == (502, {"error": "no service is running"})
    page.targets.target = known
    assert (await page.get("/ui/state"))[0] == 200


async def test_an_answer_streams_through_with_the_services_token(page, gateway):
    async with page.ask("one") as answer:
        text = await answer.text()
        assert text.endswith('data: {"choices": [{"delta": {"content": "one "}}]}\n\ndata: [DONE]\n\n')
        assert answer.headers["x-request-id"] == "r1"
    assert gateway.asked == [("/v1/chat/completions", "Bearer secret")]


async def test_a_browser_that_leaves_stops_the_work(page, gateway):
    answer = await page.ask("slow")
    await gateway.begun.wait()
    answer.close()
    await gateway.gone.wait()


async def test_an_answer_that_breaks_off_does_not_look_complete(page):
    with pytest.raises(aiohttp.ClientError):
        async with page.ask("abort") as answer:
            await answer.read()


async def test_a_running_service_gives_its_ready_processes_its_token_and_what_was_decided():
    store, scaling = Store(lambda: "2026-01-01T00:00:00Z"), {"pools": {}, "records": []}
    await store.apply(manifest(), "test")
    await store.patch_status(DEMO, {"scaling": scaling})
    token = secret.manifest(parsing.read_mapping(manifest()), secret.ServiceToken("the-token"))
    await store.apply(token, "test")
    await store_pod(store, DEMO, "gateway-b", common.GATEWAY, names.APP_GATEWAY)
    await store_pod(store, DEMO, "gateway-a", common.GATEWAY, names.APP_GATEWAY, ready=False)
    await store_pod(store, DEMO, "decode-0", "decode", names.APP_WORKER)
    async with admin.listening(DEMO.name, operations(store).answer):
        known = await sources.LocalSource(None).find()
    service = {"name": "demo", "namespace": "default", "conditions": [], "scaling": scaling}
    gateways, workers = ((ControlTarget(name, "127.0.0.1:4321"),) for name in ("gateway-b", "decode-0"))
    assert known == UITarget(gateways, "the-token", service, workers)
    assert target.from_message(known.message()) == known, "it travels between processes"


REF = Ref("InferenceService", "prod", "chat")
KUBECTL = """
import sys, time
pod = sys.argv[-2]
if "broken" in pod:
    sys.exit("error: pods not found")
print(f"Forwarding from 127.0.0.1:{4000 + int(pod[-1])} -> {sys.argv[-1][1:]}", flush=True)
time.sleep(600)
"""


@pytest.fixture
def pods(monkeypatch, kubectl):
    """The gateways that are ready; a test changes them. There is a `kubectl`."""
    kubectl(KUBECTL)
    ready = ["gateway-0", "gateway-1"]

    async def read(_cluster, ref):
        assert ref == REF
        gateways, workers = (
            tuple(ControlTarget(name, "10.0.0.1:8082") for name in pods) for pods in (ready, ["decode-0", "decode-1"])
        )
        return UITarget(gateways, "secret", {"name": "chat"}, workers)

    monkeypatch.setattr(kubernetes, "read", read)
    return ready


@pytest.fixture
async def source():
    source = KubernetesSource(None, REF)
    yield source
    await source.close()
    assert not _children()


def _children():
    return [child for child in psutil.Process().children() if "port-forward" in child.cmdline()]


async def _names(source):
    return [gateway.name for gateway in (await source.find()).gateways]


async def test_each_gateway_gets_one_forward_and_none_is_left(pods, source):
    first, again = await asyncio.gather(source.find(), source.find())
    assert [gateway.address for gateway in first.gateways] == ["127.0.0.1:4000", "127.0.0.1:4001"]
    assert again == first
    assert ["pod/gateway" in " ".join(child.cmdline()) for child in _children()] == [True, True]
    pods.remove("gateway-0")
    assert await _names(source) == ["gateway-1"]
    assert len(_children()) == 1


async def test_only_the_chosen_worker_gets_a_forward(pods, source):
    worker, token = await source.find_worker("decode-0")
    assert (worker, token) == (ControlTarget("decode-0", "127.0.0.1:4000"), "secret")
    assert len(_children()) == 1


async def test_a_forward_that_ended_is_started_again(pods, source):
    await source.find()
    (process, *_) = [forward._process for forward in source._forwards.values()]
    process.kill()
    await process.wait()
    assert await _names(source) == ["gateway-0", "gateway-1"]
    assert len(_children()) == 2


async def test_a_gateway_that_cannot_be_reached_hides_no_other_and_its_reason_is_passed_on(pods, source):
    pods[:] = ["broken-0", "gateway-1"]
    assert await _names(source) == ["gateway-1"]
    pods[:] = ["broken-0"]
    with pytest.raises(ServiceUnavailable, match="broken-0: error: pods not found"):
        await source.find()


async def test_without_kubectl_the_reason_is_given(pods, monkeypatch, tmp_path, source):
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(ServiceUnavailable, match="kubectl cannot be started"):
        await source.find()
