"""Canaries, planned by the operator in a world where pods come up, fail and go in any order."""

import math

import budget
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import BROKEN, GOOD, OTHER, POOLS, World

from legato_operator.api import conditions
from legato_protocol.wire.canary import DurationBucket, RevisionReport

INTERVAL, DEADLINE = 300.0, 1800.0
SPEC = {"weight": 10, "interval": "5m", "minRequests": 100}


def measured(requests, seconds=1.0, failures=0):
    times = (DurationBucket(64, requests, requests * math.log(seconds), requests * (math.log(seconds) ** 2 + 0.1)),)
    return RevisionReport(requests, failures, times, times)


WIDE = {"prefill": {"max": 6}, "decode": {"max": 6}, "maxPrefillPerDecode": 6, "maxDecodePerPrefill": 6}
FINE = measured(900), measured(100, seconds=1.02)
SLOW = measured(900), measured(100, seconds=3.0)
FEW = measured(900), measured(99, seconds=9.0)


def comparing(targets=(2, 3), spec=SPEC, **more):
    """A world in which the new revision serves its share."""
    world = World(targets, (1, 0), canary=spec, **more)
    world.settle()
    world.edit(OTHER)
    world.settle()
    return world


def new(world, pool, chunk=OTHER):
    return sum(world._chunks[pod.name] == chunk for pod in world.staying(pool))


def weights(world):
    return {share and share.weight for share in world.shares.values()}


def test_a_pair_of_the_new_revision_starts_alongside_the_complete_old_one():
    world = comparing()
    assert world.progressing() == ("True", conditions.CANARY_COMPARING)
    assert {pool: (new(world, pool), new(world, pool, GOOD)) for pool in POOLS} == {"prefill": (1, 2), "decode": (1, 3)}
    (share,) = world.shares.values()
    assert (set(share.revisions), share.weight) == ({*POOLS}, 10)
    assert world.chunks("gateway") == {GOOD}


def test_workers_start_only_once_every_gateway_limits_their_share():
    world = World((1, 1), (1, 0), canary=SPEC)
    world.settle()
    world.edit(OTHER)
    world.look()
    assert (weights(world), world.starting()) == ({10}, [])
    assert world.progressing() == ("True", conditions.CANARY_STARTING)
    world.look()
    assert len(world.starting()) == 2


def test_a_good_revision_is_promoted_after_the_interval():
    world = comparing()
    world.measured = FINE
    for weight in (10, 25):
        world.settle()
        assert world.progressing() == ("True", conditions.CANARY_COMPARING)
        assert weights(world) == {weight}, "it is promoted only after a comparison under equal load"
        world.now += INTERVAL
        if weight == 25:
            world.crash(next(pod for pod in world.ready("decode") if world._chunks[pod.name] == GOOD))
        made = world.look()
    assert world.progressing() == ("True", conditions.CANARY_PROMOTING)
    assert "TTFT 1.02 times" in made.status["canary"]["result"]
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    assert {chunk for pool in (*POOLS, "gateway") for chunk in world.chunks(pool)} == {OTHER}
    assert (weights(world), world.status["canary"]) == ({None}, None)


@pytest.mark.parametrize(
    ("targets", "weight", "lost", "less"),
    [
        ((1, 1), 49, "", True),
        ((1, 1), 49, "decode", True),  # its new worker is not ready at that moment
        ((1, 1), 50, "", False),
        ((10, 10), 10, "", False),
        ((11, 11), 10, "", True),
        ((2, 9), 10, "", False),
    ],
)
def test_a_weight_that_keeps_load_from_new_workers_needs_a_second_comparison(targets, weight, lost, less):
    scaling = {"prefill": {"max": 20}, "decode": {"max": 20}, "maxDecodePerPrefill": 6}
    world = comparing(targets, {**SPEC, "weight": weight}, scaling=scaling)
    world.measured = FINE
    world.now += INTERVAL
    for pod in [pod for pod in world.ready(lost) if world._chunks[pod.name] == OTHER]:
        world.crash(pod)
    world.look()
    assert world.progressing() == ("True", conditions.CANARY_COMPARING if less else conditions.CANARY_PROMOTING)


def test_the_second_comparison_counts_anew_and_can_fail():
    world = comparing()
    world.measured = FINE
    world.now += INTERVAL
    world.settle()
    world.measured = FEW
    world.now += INTERVAL
    world.settle()
    assert world.progressing() == ("True", conditions.CANARY_COMPARING)
    assert "up to 25 % of requests" in world.message()
    world.measured = SLOW
    world.settle()
    assert world.progressing() == ("False", conditions.CANARY_FAILED)
    world.edit(OTHER + 1)
    world.look()
    assert weights(world) == {10}


def test_a_pool_at_zero_does_not_start_a_promotion_again():
    world = comparing((1, 3), {**SPEC, "weight": 50}, scaling={"prefill": {"min": 0}})
    world.measured = FINE
    world.now += INTERVAL
    for targets in ((1, 3), (0, 3), (0, 0), (0, 3)):
        world.targets = dict(zip(POOLS, targets, strict=True))
        world.look()
        assert world.status["canary"]["phase"] == conditions.CANARY_PROMOTING


def test_a_pool_waits_for_the_other_during_a_promotion():
    """No new prefill worker comes up: half of that pool is new, so half of the other is, and its surge."""
    world = comparing((2, 6), {**SPEC, "weight": 50}, scaling=WIDE)
    world.measured = FINE
    world.now += INTERVAL
    for _ in range(20):
        world.look()
        for pod in world.going():
            world.go(pod)
        for pod in world.starting():
            if pod.pool != "prefill":
                world.come_up(pod)
    assert (new(world, "decode"), new(world, "decode", GOOD)) == (4, 2)
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)


def test_a_worse_revision_is_rolled_back_immediately_and_not_tried_again():
    world = comparing()
    world.measured = SLOW
    world.look()
    assert world.progressing() == ("False", conditions.CANARY_FAILED)
    world.look()
    assert weights(world) == {0}, "nothing new goes there, from before its workers drain"
    for _ in range(3):
        world.settle()
        world.now += DEADLINE
    assert world.progressing() == ("False", conditions.CANARY_FAILED)
    assert "TTFT 3.00 times" in world.message()
    assert {pool: (new(world, pool), new(world, pool, GOOD)) for pool in POOLS} == {"prefill": (0, 2), "decode": (0, 3)}
    assert weights(world) == {None}
    world.edit(OTHER + 1)
    world.settle()
    assert world.progressing() == ("False", conditions.CANARY_FAILED), "another one is compared, and is as slow"
    world.measured = FINE
    world.edit(OTHER + 2)
    world.settle()
    assert world.progressing() == ("True", conditions.CANARY_COMPARING)


@pytest.mark.parametrize(
    ("before", "edited", "reason"),
    [
        ((2, 2), (2, 2), conditions.CANARY_FAILED),
        ((2, 2), (3, 2), conditions.CANARY_COMPARING),
        ((2, 2), (2, 3), conditions.CANARY_COMPARING),
        ((2, 2), (1, 2), conditions.CANARY_COMPARING),
        ((2, 2), (1, 1), conditions.UP_TO_DATE),
        ((1, 2), (2, 2), conditions.CANARY_COMPARING),
    ],
    ids=["nothing", "prefill", "decode", "prefill is as before", "all is as before", "prefill too"],
)
def test_a_failed_canary_counts_until_any_pool_is_edited(before, edited, reason):
    world = World((2, 2), (1, 0), canary=SPEC, gpus=(1, 1))
    world.settle()
    world.edit(GOOD, before)
    world.settle()
    world.measured = SLOW
    world.settle()
    assert world.progressing() == ("False", conditions.CANARY_FAILED)
    assert world.message().count("TTFT") == 1
    world.measured = FEW
    world.edit(GOOD, edited)
    world.settle()
    assert world.progressing()[1] == reason


@pytest.mark.parametrize(("later", "reason"), [(FINE, conditions.UP_TO_DATE), (SLOW, conditions.CANARY_FAILED)])
def test_too_few_requests_are_waited_for_and_then_reported(later, reason):
    world = comparing(spec={**SPEC, "weight": 50})
    world.measured = FEW
    world.now += INTERVAL + DEADLINE
    world.settle()
    assert world.progressing() == ("True", conditions.CANARY_COMPARING)
    world.now += 1
    world.settle()
    assert world.progressing() == ("False", conditions.CANARY_INCONCLUSIVE)
    assert "99 requests of the new revision and 900 of the old one; 100 of each are needed" in world.message()
    world.measured = later
    world.settle()
    assert world.progressing() == ("False", reason), "a later decision counts"


def test_without_the_field_the_rollout_goes_on():
    world = comparing()
    world.canary = None
    world.edit(OTHER)
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    assert (weights(world), {chunk for pool in POOLS for chunk in world.chunks(pool)}) == ({None}, {OTHER})


def test_a_revision_that_cannot_start_is_rolled_back():
    world = World((2, 2), (1, 0), canary=SPEC)
    world.settle()
    world.edit(BROKEN)
    world.settle()
    assert world.progressing() == ("False", conditions.ROLLOUT_FAILED)
    assert {chunk for pool in POOLS for chunk in world.chunks(pool)} == {GOOD}
    assert all(world.existing(pool) == 2 for pool in POOLS)


def test_without_gpus_for_more_workers_the_state_says_so():
    world = comparing((1, 1), scaling={"gpuBudget": 2}, gpus=(1, 1))
    world.now += DEADLINE + 1
    world.settle()
    assert world.progressing() == ("False", conditions.CANARY_INCONCLUSIVE)
    assert "decode 0 of 1, prefill 0 of 1" in world.message()
    assert all(world.chunks(pool) == {GOOD} for pool in POOLS)


targets = st.tuples(st.integers(1, 6), st.integers(1, 6))


@settings(deadline=None, max_examples=budget.times(15))
@given(targets=targets, weight=st.integers(1, 50), surge=st.integers(1, 3), good=st.booleans(), data=st.data())
def test_every_canary_ends_within_its_bounds(targets, weight, surge, good, data):
    """And no pool gets ahead of the other by more than its surge, as pods come up and go in any order."""
    world = World(targets, (surge, 0), scaling=WIDE, canary={**SPEC, "weight": weight})
    world.settle()
    world.edit(OTHER)
    world.measured = FINE if good else SLOW
    sizes = {pool: math.ceil(world.targets[pool] * weight / 100) for pool in POOLS}
    for _ in range(data.draw(st.integers(0, 60))):
        world.look()
        shares = {pool: sum(world._chunks[p.name] == OTHER for p in world.ready(pool)) for pool in POOLS}
        least = min(shares[pool] / world.targets[pool] for pool in POOLS)
        for pool in POOLS:
            target = world.targets[pool]
            assert world.existing(pool) <= target + surge
            assert len(world.ready(pool)) >= target
            assert new(world, pool) <= max(sizes[pool], math.ceil(least * target) + surge)
        steps = [(world.come_up, pod) for pod in world.starting()] + [(world.go, pod) for pod in world.going()]
        if steps:
            act, pod = data.draw(st.sampled_from(steps))
            act(pod)
        world.now += 60
    for _ in range(3):
        world.settle()
        world.now += INTERVAL
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE if good else conditions.CANARY_FAILED)
    assert {chunk for pool in POOLS for chunk in world.chunks(pool)} == {OTHER if good else GOOD}
    assert {pool: world.existing(pool) for pool in POOLS} == world.targets
