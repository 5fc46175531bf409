"""No more work at once than there are slots, the urgent first, and no turn is lost."""

import asyncio
import random

import pytest

from legato_operator.pass_slots import PASSED_OVER, PassSlots

pytestmark = pytest.mark.virtual_time


async def _order(asked):
    """The order in which these names get the only slot, for a second each."""
    order = []

    async def work(slots, name):
        async with slots.acquire(urgent=name.startswith("urgent")):
            order.append(name)
            await asyncio.sleep(1)

    slots = PassSlots(1)
    await asyncio.gather(*(work(slots, name) for name in asked))
    return order


async def test_the_urgent_go_first_and_of_equal_ones_the_first_who_asked():
    assert await _order(["first", "b", "a", "urgent 2", "urgent 1"]) == ["first", "urgent 2", "urgent 1", "b", "a"]


async def test_nobody_is_passed_over_for_ever():
    order = await _order(["first", "a", "b", *(f"urgent {number}" for number in range(30))])
    assert (order.index("a"), order.index("b")) == (1 + PASSED_OVER, 2 * (1 + PASSED_OVER))


async def test_turns_are_never_too_many_and_none_is_lost_whoever_gives_up():
    slots, chance, busy, most = PassSlots(3), random.Random(1), 0, 0

    async def work():
        nonlocal busy, most
        async with slots.acquire(urgent=chance.random() < 0.5):
            busy += 1
            most = max(most, busy)
            try:
                await asyncio.sleep(chance.random())
            finally:
                busy -= 1

    tasks = [asyncio.ensure_future(work()) for _ in range(300)]
    for task in tasks[::2]:
        await asyncio.sleep(chance.choice([0, 0.3]))
        task.cancel()
    await asyncio.wait(tasks)
    assert most == 3
    assert not busy
    for _ in range(3):  # all three are there to be had
        await asyncio.wait_for(slots.acquire(urgent=True).__aenter__(), 60)


async def test_a_turn_that_comes_with_the_cancellation_goes_to_the_next():
    slots, done = PassSlots(1), []

    async def work(name):
        async with slots.acquire(urgent=True):
            done.append(name)

    first = slots.acquire(urgent=True)
    await first.__aenter__()
    given_up, other = asyncio.ensure_future(work("given up")), asyncio.ensure_future(work("other"))
    await asyncio.sleep(0)
    await first.__aexit__(None, None, None)
    given_up.cancel()
    await asyncio.wait_for(other, 60)
    assert done == ["other"]
