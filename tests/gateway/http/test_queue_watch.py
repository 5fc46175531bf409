"""Watches of the first queued request are answered immediately, and a watcher that has gone is forgotten."""

import asyncio

import pytest

from legato_gateway.http.queue_watch import QueueWatch
from legato_protocol.wire.demand import LONGEST_WAIT


class _Client:
    """An ASGI client, which stays until it goes."""

    def __init__(self):
        self.left = asyncio.Event()
        self.messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive(self):
        if self.messages:
            return self.messages.pop()
        await self.left.wait()
        return {"type": "http.disconnect"}


WAITS = {
    "a request that is queued ends the wait": (lambda watch, client: watch.notify(), {}, 2.0),
    "one that is queued already is not waited for": (lambda watch, client: watch.notify(), {"held": 1}, 0.0),
    "without one, the time ends it": (lambda watch, client: None, {"most": 1.0}, 1.0),
    "or a bound on the time": (lambda watch, client: None, {}, LONGEST_WAIT),
    "a client that has gone is not waited for": (lambda watch, client: client.left.set(), {}, 2.0),
}


@pytest.mark.virtual_time
@pytest.mark.parametrize(("act", "asked", "seconds"), WAITS.values(), ids=WAITS)
async def test_what_ends_a_wait(act, asked, seconds):
    """With `act` after 2 seconds."""
    client, watch = _Client(), QueueWatch(lambda: asked.get("held", 0))
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks()
    loop.call_later(2.0, act, watch, client)
    began = loop.time()
    await watch.wait(asked.get("most", 1e9), client.receive)
    assert loop.time() - began == seconds
    await asyncio.sleep(0)
    assert not watch._waiting
    assert asyncio.all_tasks() == others
    await asyncio.sleep(60.0)  # a notification that comes later reaches nobody


@pytest.mark.virtual_time
async def test_all_who_wait_are_told():
    watch = QueueWatch(lambda: 0)
    waits = [asyncio.create_task(watch.wait(60.0, _Client().receive)) for _ in range(3)]
    await asyncio.sleep(1.0)
    watch.notify()
    watch.notify()
    await asyncio.gather(*waits)
    assert asyncio.get_running_loop().time() == 1.0
