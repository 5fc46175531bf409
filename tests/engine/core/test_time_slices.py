"""Cores that share a machine's cores compute only in their time slices."""

from math import inf

import pytest

from legato_engine.core.slices.policy import SliceClaim
from legato_engine.core.slices.slices import PATIENCE, SharedCores
from legato_protocol.wire.stream import Cancel


@pytest.fixture
def open_slices(tmp_path, world):
    opened = []

    def open_slices():
        opened.append(SharedCores(tmp_path, 2, 2, world.network.clock))
        return opened[-1]

    yield open_slices
    for slices in opened:
        slices.close()


@pytest.fixture
def other(open_slices):
    """Another worker, whose step is running."""
    slices = open_slices()
    assert slices.begin(SliceClaim) == inf
    slices.expect(100 * PATIENCE)
    return slices


def test_a_step_waits_for_its_slice(world, open_slices, other):
    worker = world.worker("w0", slices=open_slices())
    assert other.begin(SliceClaim) == inf  # it keeps its slice while it is alone
    other.expect(100 * PATIENCE)
    world.generate(worker, turns=5)
    assert worker.runner.steps == 0
    other.end(inf)
    world.run(20)
    assert worker.tokens() == world.continuation(world.prompt, 12)
    assert worker.status.totals.slice_wait >= 4
    assert worker.status.shares_cores
    assert other.begin(SliceClaim) == inf  # a worker without work keeps no slice
    world.check_done()


def test_a_worker_that_waits_for_a_cancelled_request_claims_nothing(world, open_slices, other):
    worker, third = world.worker("w0", slices=open_slices()), open_slices()
    world.generate(worker, turns=3)
    assert third.begin(SliceClaim) is None
    worker.send(Cancel("r", 1))
    world.run(2)
    other.end(inf)
    assert third.begin(SliceClaim) == inf


def test_a_hand_off_between_workers_on_the_same_cores(world, open_slices):
    prefill, decode = (world.worker(name, slices=open_slices()) for name in ("p0", "d0"))
    for number in range(3):
        which = {"id": f"r{number}", "room": number}
        world.hand_off(prefill, decode, world.sequence([*world.prompt, number]), turns=2, **which)
    world.run(60)
    for number in range(3):
        assert decode.tokens(f"r{number}") == world.continuation([*world.prompt, number], 12)
    world.check_done()


def test_tokens_that_wait_preempt_prompts_no_later(world, open_slices):
    slices, other, claims = open_slices(), open_slices(), []
    begin = slices.begin
    slices.begin = lambda claim: begin(lambda: claims.append(made := claim()) or made)
    worker = world.worker("w0", slices=slices)
    world.generate(worker, turns=5)
    assert other.begin(lambda: SliceClaim(1e9, 1e9)) is None
    world.run(1)
    assert other.begin(lambda: SliceClaim(1e9, 1e9)) is not None  # tokens, which are not preempted
    other.expect(100 * PATIENCE)
    del claims[:]
    world.run(4)
    assert len(claims) > 2
    assert len({claim.preempts for claim in claims}) == 1


def test_a_worker_that_can_compute_nothing_gives_its_slice_up(world, open_slices, monkeypatch):
    worker, other = world.worker("w0", slices=open_slices()), open_slices()
    monkeypatch.setattr(worker.scheduler, "schedule", lambda *_given: None)  # as when blocks are short
    world.generate(worker, turns=2)
    assert worker.scheduler.runnable
    assert other.begin(SliceClaim) == inf
