"""Workers' control ports, as the operator asks them."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from answering_server import asking

from legato_operator.observing.observed import WorkerState
from legato_operator.observing.worker_api import MAX_CONCURRENT, HttpWorkers

WORKERS = 20 * MAX_CONCURRENT
STATE = {"draining": False, "stopping": False, "running": 1, "waiting": 2, "idle": False, "transport": "tcp"}


class Fleet:
    """Answers at one address for all workers; remembers how many were asked at the same time."""

    def __init__(self):
        self.under_way = 0
        self.most = 0
        self.asked = []

    async def answer(self, request):
        self.asked.append((request.method, request.path, request.headers["authorization"]))
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        return web.Response(body=json.dumps(STATE))  # of no content type that says so


async def test_what_a_worker_s_hand_offs_go_by_is_read_with_the_reason():
    told = STATE | {"transport": "ucx:tcp", "transport_reason": "RDMA: no device", "transport_fallback": True}

    async def answer(request):
        return web.json_response(told)

    async with asking(HttpWorkers, answer) as (workers, address):
        state = await workers.state(address, ("t",))
    assert (state.transport, state.transport_reason, state.transport_fallback) == ("ucx:tcp", "RDMA: no device", True)


async def test_thousands_of_workers_are_asked_by_turns_and_all_are_heard():
    """Two thousand requests at once kept an HTTP client busy for a minute and timed out, every one."""
    fleet = Fleet()
    async with asking(HttpWorkers, fleet.answer, timeout=60.0) as (workers, address):
        states = await asyncio.gather(*(workers.state(address, ("t",)) for _ in range(WORKERS)))
    assert states == [WorkerState(3, False, "tcp")] * WORKERS
    assert set(fleet.asked) == {("GET", "/state", "Bearer t")}
    assert 1 < fleet.most <= MAX_CONCURRENT


@pytest.mark.parametrize(("code", "recalled"), [(200, True), (409, False), (405, False)])
async def test_a_worker_is_recalled_if_it_agrees(code, recalled):
    """It does not once its process was told to end; an older one knows no such request."""
    asked = []

    async def answer(request):
        asked.append((request.method, request.path, request.headers["authorization"]))
        return web.json_response({"draining": not recalled}, status=code)

    async with asking(HttpWorkers, answer) as (workers, address):
        assert await workers.recall(address, ("t",)) is recalled
    assert asked == [("DELETE", "/drain", "Bearer t")]
    async with aiohttp.ClientSession() as session:
        assert not await HttpWorkers(session).recall("127.0.0.1:1", ("t",))


@pytest.mark.parametrize(("told", "stopping"), [({"stopping": False}, False), ({"stopping": True}, True), ({}, True)])
async def test_a_worker_that_does_not_say_that_it_stays_is_taken_to_stop(told, stopping):
    async def answer(_request):
        return web.json_response(STATE | {"draining": True, "stopping": False} | told)

    async def older(_request):
        return web.json_response({key: value for key, value in STATE.items() if key != "stopping"})

    async with asking(HttpWorkers, answer if told else older) as (workers, address):
        assert (await workers.state(address, ("t",))).stopping is stopping


async def test_a_worker_is_told_to_drain():
    fleet = Fleet()
    async with asking(HttpWorkers, fleet.answer) as (workers, address):
        await workers.drain(address, ("t",))
    assert fleet.asked == [("POST", "/drain", "Bearer t")]


@pytest.mark.parametrize(
    "response",
    [
        lambda: web.json_response(STATE, status=503),
        lambda: web.Response(text="{", content_type="application/json"),
        lambda: web.json_response([]),
        lambda: web.json_response({"running": 1}),
        lambda: web.Response(body=b"\xff", content_type="application/json"),
        lambda: web.Response(status=302, headers={"Location": "/elsewhere"}),
    ],
    ids=["an error", "no JSON", "a list", "no draining", "no text", "a redirect"],
)
async def test_a_worker_that_answers_nonsense_has_no_state(response):
    async def answer(request):
        return web.json_response(STATE) if request.path == "/elsewhere" else response()

    async with asking(HttpWorkers, answer) as (workers, address):
        assert await workers.state(address, ("t",)) is None
        await workers.drain(address, ("t",))


async def test_a_worker_that_does_not_answer_in_time_has_no_state():
    closing = asyncio.Event()

    async def answer(_request):
        await closing.wait()
        return web.json_response(STATE)

    async with asking(HttpWorkers, answer, timeout=0.02) as (workers, address):
        assert await workers.state(address, ("t",)) is None
        await workers.drain(address, ("t",))
        closing.set()


@pytest.mark.parametrize("address", ["10.0.0.7:no", "127.0.0.1:1"])
async def test_a_worker_at_no_possible_address_has_no_state(address):
    async with aiohttp.ClientSession() as session:
        workers = HttpWorkers(session)
        assert await workers.state(address, ("t",)) is None
        await workers.drain(address, ("t",))


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
