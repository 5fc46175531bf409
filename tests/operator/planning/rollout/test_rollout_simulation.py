"""Whole rollouts, planned by the operator in a world where pods come up, fail and go in any order."""

import budget
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import BROKEN, GOOD, OTHER, PLACEMENT, POOLS, World

from legato_operator.api import conditions


def _serving(*given, **more):
    """A world in which the first revision is whole."""
    world = World(*given, **more)
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    return world


def _checked_look(world, broken_off):
    """A pass: it keeps the bounds of every pool, and takes no pair of pools apart that can serve together."""
    before = {pool: (world.existing(pool), len(world.ready(pool))) for pool in POOLS}
    paired = world.paired()
    world.look(broken_off)
    for pool, (existing, ready) in before.items():
        target, (surge, unavailable) = world.targets[pool], world.allowed(pool)
        assert world.existing(pool) <= max(existing, target + surge)
        assert len(world.ready(pool)) >= min(ready, target - unavailable)
    if all(world.allowed(pool)[0] for pool in POOLS) and paired:
        assert world.paired()


def _disturb(world, data):
    """Something happens to a pod, or to the desired replicas."""
    events = [(world.come_up, pod) for pod in world.starting()] + [(world.go, pod) for pod in world.going()]
    events += [(world.crash, pod) for pool in POOLS for pod in world.ready(pool)[:1]]
    happen, about = data.draw(st.sampled_from(events)) if events else (None, None)
    if happen is not None:
        happen(about)
    if data.draw(st.integers(0, 9)) == 0:
        world.scale(data.draw(st.sampled_from(POOLS)), data.draw(st.integers(1, 3)))


def _disturbed(world, chunk, length, data):
    """A rollout of that revision, over so many passes."""
    world.edit(chunk)
    for _ in range(length):
        _checked_look(world, data.draw(broken_off))
        _disturb(world, data)
    world.settle()


targets = st.tuples(st.integers(1, 3), st.integers(1, 3))
bound = st.one_of(st.integers(0, 2), st.sampled_from(["0%", "25%", "50%", "100%"]))
bounds = st.tuples(bound, bound).filter(lambda both: any(one not in (0, "0%") for one in both))
broken = st.sampled_from([("prefill",), ("decode",), POOLS, ("gateway",)])
lengths = st.integers(0, 25)
broken_off = st.one_of(st.none(), st.integers(0, 4))


@settings(deadline=None, max_examples=budget.times(10))
@given(targets=targets, bounds=bounds, rollback=st.booleans(), length=lengths, data=st.data())
def test_good_revision_always_takes_over(targets, bounds, rollback, length, data):
    world = _serving(targets, bounds, rollback)
    _disturbed(world, OTHER, length, data)
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    assert world.chunks("gateway") == {OTHER}
    for pool in POOLS:
        assert len(world.ready(pool)) == world.existing(pool) == world.targets[pool]
        assert world.chunks(pool) == {OTHER}


@settings(deadline=None, max_examples=budget.times(10))
@given(targets=targets, bounds=bounds, broken=broken, length=lengths, data=st.data())
def test_broken_revision_stops_and_the_old_one_stays(targets, bounds, broken, length, data):
    world = _serving(targets, bounds, broken=broken)
    _disturbed(world, BROKEN, length, data)
    assert world.progressing() == ("False", conditions.ROLLOUT_FAILED)
    assert world.chunks("gateway") == {GOOD}
    for pool in POOLS:
        assert len(world.ready(pool)) >= world.targets[pool] - world.allowed(pool)[1]
    made = world.look()
    assert (made.phases, made.requeue_after) == ((), PLACEMENT.resync_after)


@settings(deadline=None, max_examples=budget.times(10))
@given(targets=targets, bounds=bounds, broken=broken, length=lengths, data=st.data())
def test_broken_revision_is_taken_back(targets, bounds, broken, length, data):
    world = _serving(targets, bounds, True, broken)
    _disturbed(world, BROKEN, length, data)
    assert world.progressing() == ("False", conditions.ROLLOUT_FAILED)
    assert world.chunks("gateway") == {GOOD}
    for pool in POOLS:
        assert len(world.ready(pool)) == world.existing(pool) == world.targets[pool]
        assert world.chunks(pool) == {GOOD}


@settings(deadline=None, max_examples=budget.times(10))
@given(
    targets=targets, bounds=bounds, rollback=st.booleans(), broken=broken,
    chunks=st.permutations([GOOD, OTHER, BROKEN]), length=lengths, data=st.data(),
)  # fmt: skip
def test_edits_in_the_midst_of_a_rollout_end_where_the_last_says(
    targets, bounds, rollback, broken, chunks, length, data
):
    """The revision before may be good, failed or not yet known."""
    world = _serving(targets, bounds, rollback, broken)
    for chunk in (*chunks, OTHER):
        world.edit(chunk)
        for _ in range(length // 3):
            world.look(data.draw(broken_off))
            _disturb(world, data)
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    assert {chunk for pool in POOLS for chunk in world.chunks(pool)} == {OTHER}
