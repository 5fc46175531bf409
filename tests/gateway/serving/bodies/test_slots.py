"""Slots for large bodies, in virtual time: few are received at a time, in order, and no slot waits for its client."""

import asyncio
import random

import pytest
from starlette.requests import Request

from legato_gateway.serving.bodies import reading
from legato_gateway.serving.bodies.budget import SMALL, BodyBudget
from legato_gateway.serving.bodies.slots import PACE, VERY_LARGE, LargeBodySlots

pytestmark = pytest.mark.virtual_time
PIECE = b"x" * (SMALL + 1)
PATIENCE = 0.5


async def passed(seconds=0.0):
    """Returns once everything has happened that is due by then."""
    await asyncio.sleep(seconds + 1e-6)


def request(receive, *headers):
    return Request({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive)


class Gateway:
    """Reads bodies, and prepares each until `prepared` is set."""

    def __init__(self, *lanes, prepared=False, limit=None):
        self.slots, self.budget = LargeBodySlots(*lanes), BodyBudget(limit)
        self.prepared, self.tasks = asyncio.Event(), {}
        self.read, self.whole = [], []  # names of bodies: of each piece, and of those that are whole
        if prepared:
            self.prepared.set()

    def start(self, *names, **body):
        for name in names:
            self.tasks[name] = asyncio.create_task(self._run(name, **body))

    async def _run(self, name, pieces=4, pause=0.0, announces=False, burst=1):
        """Takes a body whose client pauses before each piece but the first ones; None: for ever."""

        async def receive():
            if name in self.read:
                seconds = 0.0 if self.read.count(name) < burst else pause
                await (asyncio.sleep(seconds) if seconds is not None else asyncio.Event().wait())
            self.read.append(name)
            return {"type": "http.request", "body": PIECE, "more_body": self.read.count(name) < pieces}

        size = [(b"content-length", b"%d" % (pieces * len(PIECE)))] if announces else []
        with self.budget.body() as held, self.slots.body() as slot:
            await reading.read(request(receive, *size), 1 << 30, held, slot)
            self.whole.append(name)
            await self.prepared.wait()

    async def cancel(self, *names):
        for name in names:
            self.tasks.pop(name).cancel()
        await passed()

    async def end(self):
        """Checks that all ends well, and that everything is given back."""
        self.prepared.set()
        await asyncio.gather(*self.tasks.values())
        assert self.budget.used == 0


@pytest.mark.parametrize("announces", [False, True])
async def test_of_large_bodies_only_a_first_piece_is_read_until_others_are_prepared(announces):
    gateway = Gateway(2)
    gateway.start(*"abcde", announces=announces)
    await passed()
    assert gateway.whole == ["a", "b"]
    assert [gateway.read.count(name) for name in "abcde"] == [4, 4, 1, 1, 1]
    await gateway.end()
    assert gateway.whole == list("abcde")


async def test_a_body_that_turns_out_to_be_very_large_waits_among_those():
    gateway = Gateway(1, 1)
    gateway.start("announced", pieces=100, announces=True)
    gateway.start("grows", pieces=100)
    gateway.start("prompt")
    await passed()
    assert sorted(gateway.whole) == ["announced", "prompt"]
    assert gateway.read.count("grows") < 20
    await gateway.end()


async def test_a_client_that_sends_slowly_loses_its_slot_and_its_body_comes_whole():
    gateway = Gateway(1, prepared=True)
    gateway.start("slow", pieces=3, pause=PATIENCE)
    gateway.start("other")
    for seconds, whole in ((0.0, ["other"]), (2 * PATIENCE, ["other", "slow"])):
        await passed(seconds)
        assert gateway.whole == whole
    await gateway.end()


@pytest.mark.parametrize(
    ("pieces", "pause", "whole"), [(4, 0.9, "first"), (4, 1.1, "other"), (200, 0.9, "first"), (200, 1.1, "other")]
)
async def test_a_slot_waits_for_its_client_as_long_as_the_pace_allows_and_is_kept_while_its_body_is_prepared(
    pieces, pause, whole
):
    gateway = Gateway(1, 1, PATIENCE)
    earned = min(PATIENCE, (pieces - 1) * len(PIECE) / PACE)  # with all that came in its slot
    gateway.start("first", pieces=pieces + 1, pause=pause * earned, burst=pieces, announces=True)
    gateway.start("other", pieces=pieces, announces=True)
    await passed(1.5 * PATIENCE)
    assert gateway.whole == [whole]
    await gateway.cancel("first")
    await gateway.end()


async def test_bodies_of_64_kib_need_no_slot_and_those_of_a_mebibyte_none_of_the_very_large():
    slots = LargeBodySlots(1, 1)
    assert [slots.lane(size) for size in (0, SMALL)] == [None, None]
    assert slots.lane(SMALL + 1) is slots.lane(VERY_LARGE) is not None
    assert slots.lane(VERY_LARGE + 1) is not slots.lane(VERY_LARGE)


@pytest.mark.parametrize("seed", range(30))
async def test_slots_go_round_in_order_whoever_comes_leaves_or_is_cancelled(seed):
    """Never more than two have a slot, and none is free while somebody waits."""
    chance, slots = random.Random(seed), LargeBodySlots(2, 1)
    asked, got, over, running, bodies = [], [], {}, {}, []

    async def body(number):
        with slots.body() as slot:
            asked.append(number)
            bodies.append(slot)
            await slot.take(len(PIECE))
            got.append(number)
            await over[number].wait()

    for number in range(60):
        over[number] = asyncio.Event()
        running[number] = asyncio.create_task(body(number))
        for _ in range(chance.randrange(3)):
            each = chance.choice(list(running) or [number])
            if chance.random() < 0.5:
                over[each].set()
            elif each in running:
                running.pop(each).cancel()
            await asyncio.sleep(0)
            assert sum(slot.held for slot in bodies) <= 2
    for event in over.values():
        event.set()
    await asyncio.wait_for(asyncio.gather(*running.values(), return_exceptions=True), 60)
    assert not any(slot.held for slot in bodies)
    assert got == [number for number in asked if number in got], "first come, first served"
    assert set(running) <= set(got)
