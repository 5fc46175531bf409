"""Idle services, and those at zero, are polled when a gateway's demand changes, and at no other gateway's."""

import asyncio
import dataclasses
from collections import Counter, defaultdict

import pytest
from planned import observed, pools, report

from legato_operator.autoscaler.decide import DECIDE_EVERY
from legato_operator.clock import SystemClock
from legato_operator.cluster import Ref
from legato_operator.manifests import common
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing.observed import Pod
from legato_operator.waking import DemandWaker
from legato_protocol.wire.demand import WorkerLink

pytestmark = pytest.mark.virtual_time
DEMO = Ref("InferenceService", "default", "demo")
WAIT = 5.0  # seconds that a gateway without a request takes to answer


class _Gateways:
    """Gateways whose demand changes answer at once. Remembers who was asked, and with what."""

    def __init__(self):
        self.holding = defaultdict(asyncio.Event)  # by address
        self.asked = Counter()
        self.tokens = None
        self.seen = None
        self.waiting = 0

    async def changes(self, address, tokens, seen, tls=None):
        self.asked[address] += 1
        self.tokens, self.seen = tuple(tokens), seen
        self.waiting += 1
        try:
            async with asyncio.timeout(WAIT):
                await self.holding[address].wait()
        except TimeoutError:
            return False
        finally:
            self.waiting -= 1
        return True

    def hold(self, address):
        self.holding[address].set()


def _gateway(name="gateway-0", **fields):
    given = {"address": f"{name}:8082", "ready": True, "leaving": False} | fields
    return Pod(name, f"uid-{name}", common.GATEWAY, "", "0", **given)


def _observed(build, pods, prefill=0, decode=0, mode="Managed", **changes):
    bounds = {"mode": mode, "prefill": {"min": 0}, "decode": {"min": 0}}
    objects = pools({"prefill": prefill, "decode": decode})
    known = {"objects": objects, "pods": tuple(pods), "token": ServiceToken("secret"), "now": 0.0} | changes
    return observed(build(scaling=bounds), **known)


@pytest.fixture
def gateways():
    return _Gateways()


@pytest.fixture
def woken():
    return []


@pytest.fixture
async def waker(gateways, woken):
    loop, made = asyncio.get_running_loop(), DemandWaker(gateways, SystemClock())
    task = asyncio.create_task(made.run(lambda service: woken.append((loop.time(), service))))
    await asyncio.sleep(0)
    yield made
    task.cancel()
    await asyncio.wait((task,))
    assert not gateways.waiting


async def test_a_request_wakes_a_service_at_zero_at_once(waker, gateways, woken, build):
    waker.follow(DEMO, _observed(build, [_gateway(), _gateway("gateway-1")]), idle=False)
    await asyncio.sleep(100.25)
    assert not woken
    assert gateways.asked["gateway-0:8082"] == gateways.asked["gateway-1:8082"] == 21, "without a gap"
    assert gateways.tokens == ("secret",)
    gateways.hold("gateway-1:8082")
    await asyncio.sleep(0.25)
    assert woken == [(100.25, DEMO)]


async def test_a_wake_that_changes_nothing_is_repeated_no_sooner_than_looks_are(waker, gateways, woken, build):
    """As where another gateway does not answer, so that nothing is decided."""
    gateways.hold("gateway-0:8082")
    at_zero = _observed(build, [_gateway()])
    for _ in range(1000):
        waker.follow(DEMO, at_zero, idle=False)
        await asyncio.sleep(0.01)
    assert len(woken) == 10 / DECIDE_EVERY


async def test_a_gateway_that_answers_at_once_is_asked_no_more_often_than_looks_are(waker, gateways, build):

    async def changes(address, tokens, seen, tls=None):
        gateways.asked[address] += 1
        return False

    gateways.changes = changes
    waker.follow(DEMO, _observed(build, [_gateway()]), idle=False)
    await asyncio.sleep(10 * DECIDE_EVERY - 1)
    assert gateways.asked["gateway-0:8082"] == 10


@pytest.mark.parametrize(
    "changes",
    [
        {"decode": 1},
        {"prefill": 1},
        {"mode": "Advisory"},
        {"mode": "External"},
        {"deleting": True},
        {"objects": ()},
        {"annotations": {common.ANNOTATION_PAUSED: "2999-01-01T00:00:00Z"}},
        {"pods": ()},
        {"pods": (_gateway(ready=False), _gateway(leaving=True), _gateway(address=""))},
        {"pods": (dataclasses.replace(_gateway(), pool="decode"),)},
    ],
    ids=str,
)
async def test_who_would_not_start_a_worker_waits_for_no_gateway(waker, gateways, build, changes):
    fields = {"pods": [_gateway()]} | changes
    assert not waker.follow(DEMO, _observed(build, **fields), idle=False)
    await asyncio.sleep(60)
    assert not gateways.asked


@pytest.mark.parametrize(
    "end",
    [
        lambda waker, build: waker.follow(DEMO, _observed(build, [_gateway()], decode=1), idle=False),
        lambda waker, build: waker.forget(DEMO),
        lambda waker, build: waker.follow(DEMO, _observed(build, [_gateway("gateway-1")]), idle=False),
    ],
    ids=["started", "gone", "another gateway"],
)
async def test_a_service_is_waited_for_only_while_it_is_at_zero(waker, gateways, woken, build, end):
    waker.follow(DEMO, _observed(build, [_gateway()]), idle=False)
    await asyncio.sleep(1)
    assert gateways.waiting == 1
    end(waker, build)
    await asyncio.sleep(1)
    before = gateways.asked["gateway-0:8082"]
    gateways.hold("gateway-0:8082")
    await asyncio.sleep(60)
    assert (gateways.asked["gateway-0:8082"], woken) == (before, [])


async def test_who_leads_again_waits_again(build):
    """The replica that leads runs it: what was waited for before is forgotten."""
    gateways = _Gateways()
    waker = DemandWaker(gateways, SystemClock())
    waker.follow(DEMO, _observed(build, [_gateway()]), idle=False)
    await asyncio.sleep(60)
    assert not gateways.asked, "it does not run yet"
    for _ in range(2):
        task = asyncio.create_task(waker.run(lambda service: None))
        await asyncio.sleep(0)
        waker.follow(DEMO, _observed(build, [_gateway()]), idle=False)
        await asyncio.sleep(1)
        assert gateways.waiting == 1
        task.cancel()
        await asyncio.wait((task,))
        assert not gateways.waiting


def _reporting(digest="seen", name="gateway-0", connected=True, **fields):
    return _gateway(name, report=report(digest=digest, links=(WorkerLink("w", connected),)), **fields)


async def test_changed_demand_polls_an_idle_service(waker, gateways, woken, build):
    pods = [_reporting("one"), _reporting("two", "gateway-1")]
    assert waker.follow(DEMO, _observed(build, pods, decode=1), idle=True)
    await asyncio.sleep(100.25)
    assert (woken, gateways.waiting) == ([], 2)
    gateways.hold("gateway-1:8082")
    await asyncio.sleep(0.25)
    assert woken == [(100.25, DEMO)]


async def test_gateways_are_asked_for_what_differs_from_the_newest_report(waker, gateways, build):
    for digest in ("one", "two"):
        assert waker.follow(DEMO, _observed(build, [_reporting(digest)], decode=1), idle=True)
    await asyncio.sleep(2 * WAIT + 1)
    assert (gateways.seen, gateways.waiting) == ("two", 1)


@pytest.mark.parametrize(
    ("pods", "idle"),
    [
        ([], True),
        ([_reporting()], False),
        ([_reporting(), _gateway("gateway-1")], True),  # silent
        ([_reporting(digest="")], True),  # of an older release
        ([_reporting(connected=False)], True),  # the loss becomes overdue without a change
        ([_reporting(ready=False)], True),
        ([_reporting(), _reporting(name="gateway-1", leaving=True)], True),
    ],
)
async def test_polls_go_on_unless_each_gateway_reports_every_change(waker, gateways, build, pods, idle):
    assert waker.follow(DEMO, _observed(build, [_reporting()], decode=1), idle=True)
    assert not waker.follow(DEMO, _observed(build, pods, decode=1), idle=idle)
    await asyncio.sleep(60)
    assert not gateways.waiting
