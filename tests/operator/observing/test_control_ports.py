"""Control ports of workers and gateways, as the operator asks them."""

import asyncio
import json

import pytest
from aiohttp import web
from answering_server import asking
from msgspec import structs

from legato_operator.observing import gateway_api, worker_api
from legato_operator.observing.gateway_api import HttpGateways
from legato_operator.observing.observed import KVFormat, WorkerState
from legato_operator.observing.worker_api import HttpWorkers
from legato_protocol.wire import canary, demand
from legato_protocol.wire.canary import Canary
from legato_protocol.wire.demand import DemandReport

STATE = {"draining": False, "stopping": False, "running": 1, "waiting": 2, "idle": False, "transport": "tcp"}
REPORT = DemandReport("g", 1.0, (), {}, (), 0.0, {"prefill": 1.5}, (), 0, 0, 0, ())
HOLDING = demand.encode(structs.replace(REPORT, queued_requests=2))
TOKENS = ("t",)
SILENT = {HttpWorkers: (None, None, False), HttpGateways: (None, True, None)}
CANARY = Canary({"decode": "abc"}, 10)


async def _all(client, address):
    if isinstance(client, HttpGateways):
        return (
            await client.report(address, TOKENS),
            await client.changes(address, TOKENS, ""),
            await client.set_canary(address, TOKENS, CANARY),
        )
    return tuple([await call(address, TOKENS) for call in (client.state, client.drain, client.recall)])


class Fleet:
    """Answers at one address for all processes; remembers who asked, and how many at the same time."""

    def __init__(self, body, full=0, code=200):
        """With `full`, answers come once that many have asked."""
        self.body, self.full, self.code = body, full, code
        self.under_way = self.most = 0
        self.asked = []
        self.opened = asyncio.Event()

    async def answer(self, request):
        self.asked.append((request.method, request.path_qs, request.headers["authorization"]))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.most >= self.full:
            self.opened.set()
        await self.opened.wait()
        await asyncio.sleep(0)
        self.under_way -= 1
        return web.Response(body=self.body, status=self.code)  # of no content type that says so


async def test_thousands_of_workers_are_asked_in_slots_and_all_answer():
    """Two thousand requests at the same time kept an HTTP client busy for a minute and timed out, every one."""
    fleet, count = Fleet(json.dumps(STATE)), 20 * worker_api.MAX_CONCURRENT
    async with asking(HttpWorkers, fleet.answer) as (workers, address):
        states = await asyncio.gather(*(workers.state(address, TOKENS) for _ in range(count)))
    assert states == [WorkerState(3, False, "tcp")] * count
    assert set(fleet.asked) == {("GET", "/state", "Bearer t")}
    assert 1 < fleet.most <= worker_api.MAX_CONCURRENT


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"transport": "ucx:tcp"}, WorkerState(3, False, "ucx:tcp")),
        (
            {"transport": "ucx:tcp", "transport_reason": "RDMA: no device", "transport_fallback": True},
            WorkerState(3, False, "ucx:tcp", transport_reason="RDMA: no device", transport_fallback=True),
        ),
        ({"totals": {"transfer": {"failed_in_a_row": 4}}}, WorkerState(3, False, "tcp", failed_connections=4)),
        ({"max_length": 8192, "max_running": 64}, WorkerState(3, False, "tcp", max_length=8192, max_running=64)),
        (
            {"totals": {"tiers": {"host": {"problem": ""}, "disk": {"problem": "it is full", "errors": 3}}}},
            WorkerState(3, False, "tcp", tier_problem="disk: it is full (errors: 3)"),
        ),
        (
            {"kv_revision": "r", "weights": "w", "layout": "l", "formats": "amx: why; memory"},
            WorkerState(3, False, "tcp", kv=KVFormat("r", "w", "l", "amx")),
        ),
        ({"fallback": "no nvcc"}, WorkerState(3, False, "tcp", kernel_fallback="no nvcc")),
        ({"draining": True, "stopping": True}, WorkerState(3, True, "tcp", stopping=True)),
        ({"transport": ...}, WorkerState(3, False, "", core_runs=False)),
        ({"stopping": ...}, WorkerState(3, False, "tcp", stopping=True)),  # it does not say that it stays
    ],
)
async def test_state_of_a_worker_is_read(given, expected):
    body = json.dumps({name: value for name, value in (STATE | given).items() if value is not ...})
    async with asking(HttpWorkers, Fleet(body).answer) as (workers, address):
        assert await workers.state(address, TOKENS) == expected


@pytest.mark.parametrize(("code", "recalled"), [(200, True), (409, False), (405, False)])
async def test_a_worker_drains_and_is_recalled_if_it_agrees(code, recalled):
    """It does not once its process is to end; an older one knows no such request."""
    fleet = Fleet("{}", code=code)
    async with asking(HttpWorkers, fleet.answer) as (workers, address):
        await workers.drain(address, TOKENS)
        assert await workers.recall(address, TOKENS) is recalled
    assert fleet.asked == [("POST", "/drain", "Bearer t"), ("DELETE", "/drain", "Bearer t")]


ELSEWHERE = {"status": 302, "headers": {"Location": "/elsewhere"}}
NONSENSE = {
    HttpWorkers: {
        "an error": {"body": json.dumps(STATE), "status": 503},
        "no draining": {"body": '{"running": 1}'},
        "not JSON": {"body": b"{"},
        "a list": {"body": b"[]"},
        "not text": {"body": b"\xff", "content_type": "application/json"},
    },
    HttpGateways: {
        "unauthorized": {"body": HOLDING, "status": 401},
        "a negative time": {"body": HOLDING.replace(b"1.5", b"-1.5")},
        "too long": {"body": HOLDING + b" " * gateway_api.MAX_BYTES},
        "not JSON": {"body": b"{"},
        "a list": {"body": b"[]"},
        "not text": {"body": b"\xff"},
    },
}


@pytest.mark.parametrize(
    ("client", "wrong"),
    [
        pytest.param(client, wrong, id=f"{client.__name__}-{name}")
        for client, answers in NONSENSE.items()
        for name, wrong in (answers | {"a redirect": ELSEWHERE}).items()
    ],
)
async def test_nonsense_is_not_an_answer(client, wrong):
    async def answer(request):
        right = json.dumps(STATE).encode() if client is HttpWorkers else HOLDING
        return web.Response(**({"body": right} if request.path == "/elsewhere" else wrong))

    async with asking(client, answer) as (asked, address):
        (first, *_), (nothing, *_) = await _all(asked, address), SILENT[client]
        assert first is nothing
        assert client is HttpWorkers or await asked.changes(address, TOKENS, "") is True


@pytest.mark.parametrize("client", SILENT)
@pytest.mark.parametrize("address", ["10.0.0.7:no", "127.0.0.1:1", ""])
async def test_where_nobody_answers_there_is_no_answer(client, address):
    """At no possible address, where nobody listens, or not in time."""

    async def never(_request):
        await asyncio.sleep(60)

    async with asking(client, never, timeout=0.02) as (asked, slow):
        if address:
            assert await _all(asked, address) == SILENT[client]
        elif client is HttpWorkers:
            assert await _all(asked, slow) == SILENT[client]
        else:
            assert await asked.report(slow, TOKENS) is None


@pytest.mark.parametrize(
    ("body", "seen", "changed"),
    [
        (demand.encode(structs.replace(REPORT, digest="d")), "d", False),
        (demand.encode(structs.replace(REPORT, digest="d")), "c", True),
        (demand.encode(REPORT), "", False),  # an older gateway, which waits for a queued request only
        (HOLDING, "", True),
        (b"nonsense", "d", True),
    ],
)
async def test_a_gateway_is_waited_for_until_its_demand_changes(body, seen, changed):
    fleet = Fleet(body)
    async with asking(HttpGateways, fleet.answer) as (gateways, address):
        assert await gateways.changes(address, TOKENS, seen) is changed
    assert fleet.asked == [("GET", f"/demand?wait={demand.LONGEST_WAIT:g}&seen={seen}", "Bearer t")]


@pytest.mark.parametrize(
    ("given", "sent"), [(CANARY, ("PUT", canary.encode(CANARY))), (None, ("DELETE", b""))], ids=["set", "ended"]
)
@pytest.mark.parametrize("code", [204, 404])
async def test_a_canary_is_set_and_ended(given, sent, code, caplog):
    """An older gateway knows no canary."""
    received = []

    async def answer(request):
        received.append((request.method, request.path, await request.read()))
        return web.Response(status=code)

    async with asking(HttpGateways, answer) as (gateways, address):
        await gateways.set_canary(address, TOKENS, given)
    method, body = sent
    assert received == [(method, "/canary", body)]
    assert ("refuses a canary: 404" in caplog.text) is (code == 404)


async def test_a_gateway_is_waited_for_longer_than_it_is_asked():
    fleet = Fleet(HOLDING, full=3)
    async with asking(HttpGateways, fleet.answer, timeout=0.05) as (gateways, address):
        waiting = asyncio.create_task(gateways.changes(address, TOKENS, ""))
        assert await gateways.report(address, TOKENS) is None
        fleet.opened.set()
        assert await waiting


async def test_who_waits_for_gateways_keeps_nobody_else_from_asking():

    async def answer(request):
        if "wait" in request.query:
            await asyncio.sleep(60)
        return web.Response(body=demand.encode(REPORT))

    async with asking(HttpGateways, answer) as (gateways, address):
        waits = [
            asyncio.create_task(gateways.changes(address, TOKENS, "")) for _ in range(2 * gateway_api.MAX_CONCURRENT)
        ]
        await asyncio.sleep(0)
        assert await gateways.report(address, TOKENS) == REPORT
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)


async def test_a_worker_that_has_not_read_the_newest_token_is_shown_the_one_before(caplog):
    asked = []

    async def answer(request):
        asked.append(request.headers["authorization"])
        known = asked[-1] == "Bearer a"
        return web.json_response(STATE | {"tokens": ["id"]}, status=200 if known else 401)

    async with asking(HttpWorkers, answer) as (workers, address):
        assert (await workers.state(address, ("b", "a"))).tokens == ("id",)
        assert asked == ["Bearer b", "Bearer a"]
        assert not caplog.records
        assert await workers.state(address, ("b", "c")) is None
        assert "refuses the service's token at /state" in caplog.text
