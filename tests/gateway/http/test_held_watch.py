"""Who waits for the first held request hears of it at once, and nobody is waited for who has gone."""

import asyncio

import pytest
import virtual_loop

from legato_gateway.http.held_watch import HeldWatch
from legato_protocol.demand import LONGEST_WAIT


class _Client:
    """Who asks, by ASGI: it stays until it goes."""

    def __init__(self):
        self.left = asyncio.Event()
        self.body = True

    async def receive(self):
        if self.body:
            self.body = False
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


def _waited(act, held=0, most=1e9):
    """Seconds that a wait took, with `act` after 2."""
    took = []

    async def check():
        client, watch = _Client(), HeldWatch(lambda: held)
        loop = asyncio.get_running_loop()
        loop.call_later(2.0, act, watch, client)
        began = loop.time()
        await watch.wait(most, client.receive)
        took.append(loop.time() - began)
        await asyncio.sleep(0)
        assert not watch._waiting
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(60.0)  # what is told afterwards is told to nobody

    virtual_loop.run(check())
    return took[0]


def test_a_request_that_is_held_ends_the_wait():
    assert _waited(lambda watch, client: watch.notify()) == 2.0


def test_one_that_is_held_already_is_not_waited_for():
    assert _waited(lambda watch, client: watch.notify(), held=1) == 0.0


def test_without_a_request_the_time_ends_it():
    assert _waited(lambda watch, client: None, most=1.0) == 1.0
    assert _waited(lambda watch, client: None) == LONGEST_WAIT


def test_who_has_gone_is_not_waited_for():
    assert _waited(lambda watch, client: client.left.set()) == 2.0


@pytest.mark.virtual_time
async def test_all_who_wait_are_told():
    watch = HeldWatch(lambda: 0)
    waits = [asyncio.create_task(watch.wait(60.0, _Client().receive)) for _ in range(3)]
    await asyncio.sleep(1.0)
    watch.notify()
    watch.notify()
    await asyncio.gather(*waits)
    assert asyncio.get_running_loop().time() == 1.0
