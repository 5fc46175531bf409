"""Gateways' control ports, as the operator asks them."""

import asyncio

import aiohttp
import pytest
from aiohttp import web
from answering_server import asking
from msgspec import structs

from legato_operator.observing import gateway_api
from legato_operator.observing.gateway_api import MAX_CONCURRENT, HttpGateways
from legato_protocol import demand
from legato_protocol.demand import DemandReport

REPORT = DemandReport("g", 1.0, (), {}, (), 0.0, {"prefill": 1.5}, (), 0, 0, 0, ())


async def test_all_gateways_are_asked_at_once_but_for_a_bound():
    under_way, most, asked, full = 0, 0, set(), asyncio.Event()

    async def answer(request):
        nonlocal under_way, most
        asked.add((request.method, request.path, request.headers["authorization"]))
        under_way += 1
        most = max(most, under_way)
        if most == MAX_CONCURRENT:
            full.set()
        await full.wait()
        under_way -= 1
        return web.Response(body=demand.encode(REPORT))

    async with asking(HttpGateways, answer, timeout=60.0) as (gateways, address):
        reports = await asyncio.gather(*(gateways.report(address, ("t",)) for _ in range(10 * MAX_CONCURRENT)))
    assert reports == [REPORT] * (10 * MAX_CONCURRENT)
    assert asked == {("GET", "/demand", "Bearer t")}
    assert most == MAX_CONCURRENT


@pytest.mark.parametrize(
    "response",
    [
        lambda: web.Response(body=demand.encode(REPORT), status=401),
        lambda: web.Response(body=b"{"),
        lambda: web.Response(body=b"[]"),
        lambda: web.Response(body=b"\xff"),
        lambda: web.Response(body=demand.encode(REPORT).replace(b"1.5", b"-1.5")),
        lambda: web.Response(body=demand.encode(REPORT) + b" " * gateway_api.MAX_BYTES),
        lambda: web.Response(status=302, headers={"Location": "/elsewhere"}),
    ],
    ids=["unauthorized", "no JSON", "a list", "no text", "a negative time", "too long", "a redirect"],
)
async def test_an_answer_that_makes_no_sense_is_none(response):
    async def answer(_request):
        return response()

    async with asking(HttpGateways, answer) as (gateways, address):
        assert await gateways.report(address, ("t",)) is None


async def test_a_gateway_that_does_not_answer_in_time_has_no_report():
    async def answer(_request):
        await asyncio.sleep(60)

    async with asking(HttpGateways, answer, timeout=0.05) as (gateways, address):
        assert await gateways.report(address, ("t",)) is None


async def test_where_nobody_listens_there_is_no_report():
    async with aiohttp.ClientSession() as session:
        assert await HttpGateways(session).report("127.0.0.1:9", ("t",)) is None


@pytest.mark.parametrize(
    ("body", "status", "holds"),
    [
        (demand.encode(structs.replace(REPORT, held_requests=2)), 200, True),
        (demand.encode(REPORT), 200, False),
        (demand.encode(structs.replace(REPORT, held_requests=2)), 401, False),
        (b"{", 200, False),
    ],
    ids=["held", "nothing held", "refused", "no report"],
)
async def test_a_gateway_is_waited_for_until_it_holds_a_request(body, status, holds):
    asked = []

    async def answer(request):
        asked.append(request.path_qs)
        return web.Response(body=body, status=status)

    async with asking(HttpGateways, answer) as (gateways, address):
        assert await gateways.holds(address, ("t",)) is holds
    assert asked == [f"/demand?wait={demand.LONGEST_WAIT:g}"]


async def test_a_gateway_is_waited_for_longer_than_it_is_asked():
    answered = asyncio.Event()

    async def answer(request):
        await answered.wait()
        return web.Response(body=demand.encode(structs.replace(REPORT, held_requests=1)))

    async with asking(HttpGateways, answer, timeout=0.05) as (gateways, address):
        waiting = asyncio.create_task(gateways.holds(address, ("t",)))
        assert await gateways.report(address, ("t",)) is None
        answered.set()
        assert await waiting


async def test_who_waits_for_gateways_keeps_nobody_else_from_asking():
    """Their turns are not those of reports."""

    async def answer(request):
        if "wait" in request.query:
            await asyncio.sleep(60)
        return web.Response(body=demand.encode(REPORT))

    async with asking(HttpGateways, answer) as (gateways, address):
        waits = [asyncio.create_task(gateways.holds(address, ("t",))) for _ in range(2 * MAX_CONCURRENT)]
        await asyncio.sleep(0)
        assert await gateways.report(address, ("t",)) == REPORT
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
