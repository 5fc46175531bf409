"""Hand-offs, deadlines and reports while a step computes, however long it takes."""

import pytest

from legato_protocol.wire.stream import Generate

LEASE = 10.0
LONG = 15  # iterations of a step, a second each: longer than a lease


@pytest.fixture
def slow_pair(make_world):
    world = make_world(lease=LEASE)
    yield world, *(world.worker(name, chunk=4, step_turns=lambda: LONG) for name in ("p", "d"))
    world.close()


def test_hand_offs_outlive_steps_that_are_longer_than_their_lease(slow_pair):
    world, prefill, decode = slow_pair
    world.hand_off(prefill, decode, world.sequence())
    world.run(LONG * 20)
    assert decode.tokens() == world.continuation(world.prompt, 12)
    assert [*prefill.failures(), *decode.failures()] == []
    assert sum(worker.agent.counts().fences for worker in (prefill, decode)) == 0
    assert prefill.used == decode.used == 0


def test_the_first_token_of_a_hand_off_waits_for_no_step_of_either_worker(world):
    prefilled = iter((5, 0, 0))
    # The prompt takes three steps; the peers meet in the first.
    prefill = world.worker("p", chunk=8, step_turns=lambda: next(prefilled, 1000))
    decode = world.worker("d", step_turns=lambda: 1000)
    decode.send(Generate("other", 1, world.sequence([1, 2, 3])))
    world.hand_off(prefill, decode, world.sequence())
    world.generate(prefill, list(range(8)), id="other", turns=30)
    assert (prefill.runner.steps, decode.runner.steps) == (4, 1)
    assert decode.tokens() == world.continuation(world.prompt, 1)


def test_a_deadline_is_reported_during_a_step(world):
    worker = world.worker("u", step_turns=lambda: 50)
    world.generate(worker, deadline=5.0, turns=10)
    assert [(failed.id, failed.code, failed.retry) for failed in worker.failures()] == [("r", "deadline", False)]
