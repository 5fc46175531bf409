"""Waits for changed demand end with the change, and a caller that has gone is forgotten."""

import asyncio

import pytest

from legato_gateway.http.demand_report import CHECK_EVERY, DemandWatch
from legato_protocol.wire.demand import LONGEST_WAIT

AT = 2.25  # seconds until something happens
NEXT_CHECK = 3 * CHECK_EVERY


class _Gateway:
    """A gateway with a caller, which stays until it goes."""

    def __init__(self):
        self.watch = DemandWatch()
        self.changed = False
        self.left = asyncio.Event()
        self.messages = [{"type": "http.request", "body": b"", "more_body": False}]

    def change(self):
        self.changed = True

    def queue(self):
        self.changed = True
        self.watch.notify()

    async def receive(self):
        if self.messages:
            return self.messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def wait(self, seconds=1e9):
        await self.watch.wait(lambda: self.changed, seconds, self.receive)


WAITS = {
    "a queued request ends the wait immediately": (lambda gateway: gateway.queue(), {}, AT),
    "any other change at the next check": (lambda gateway: gateway.change(), {}, NEXT_CHECK),
    "demand that has changed already is not waited for": (lambda gateway: None, {"changed": True}, 0.0),
    "without a change, the time ends it": (lambda gateway: None, {"most": 1.5}, 1.5),
    "or a bound on the time": (lambda gateway: None, {}, LONGEST_WAIT),
    "a wake without a change does not": (lambda gateway: gateway.watch.notify(), {"most": 5.0}, 5.0),
    "a client that has gone is not waited for": (lambda gateway: gateway.left.set(), {}, AT),
    "a gateway that stops lets nobody wait": (lambda gateway: gateway.watch.close(), {}, AT),
}


@pytest.mark.virtual_time
@pytest.mark.parametrize(("act", "given", "seconds"), WAITS.values(), ids=WAITS)
async def test_what_ends_a_wait(act, given, seconds):
    gateway, loop, others = _Gateway(), asyncio.get_running_loop(), asyncio.all_tasks()
    gateway.changed = given.get("changed", False)
    loop.call_later(AT, act, gateway)
    began = loop.time()
    await gateway.wait(given.get("most", 1e9))
    assert loop.time() - began == pytest.approx(seconds)
    await asyncio.sleep(0)
    assert not gateway.watch._waiting
    assert asyncio.all_tasks() == others
    await asyncio.sleep(60.0)  # a notification that comes later reaches nobody


@pytest.mark.virtual_time
async def test_all_callers_are_answered_and_none_waits_for_a_gateway_that_stops():
    gateway = _Gateway()
    waits = [asyncio.create_task(gateway.wait()) for _ in range(3)]
    await asyncio.sleep(0.5)
    gateway.watch.close()
    await asyncio.gather(*waits, gateway.wait())
    assert asyncio.get_running_loop().time() == 0.5
