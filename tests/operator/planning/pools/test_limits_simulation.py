"""Whole bursts, rollouts and drains within the limits, in a world where pods come up, fail and go in any order."""

import dataclasses

import budget
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import GOOD, OTHER, POOLS, World

from legato_operator.api import pool_sizes, roles
from legato_operator.observing.observed import Pod
from legato_operator.planning.actions import Apply, Delete
from legato_operator.planning.pools import limits
from legato_operator.planning.pools.gpu_budget import GpuBudget

GPU = "nvidia.com/gpu"


def _gpus(world):
    return sum(pod.devices.get(GPU, 0) for pod in world.pods.values() if not pod.failed)


def _targets(world):
    return {pool: target.replicas for pool, target in limits.targets(world.service.spec, world.targets).items()}


def _scaling(budget, least=(1, 1), most=(9, 9), ratios=(4, 4)):
    bounds = {pool: {"min": low, "max": high} for pool, low, high in zip(POOLS, least, most, strict=True)}
    return {"gpuBudget": budget, "maxPrefillPerDecode": ratios[0], "maxDecodePerPrefill": ratios[1], **bounds}


def _going(world, pods):
    """Counts the pods that are deleted in this pass, after others are started."""
    actions = [action for phase in world.made.phases for action in phase.actions]
    deleted = {action.ref.name for action in actions if isinstance(action, Delete)}
    return sum(pod.name in deleted for pod in pods)


def _workers(world, pool):
    return [pod for pod in world.staying(pool) if not pod.failed]


def _checked_look(world, broken_off=None):
    """A pass: after each of its actions the budget holds, and no pool that it enlarges breaks the ratio by that."""
    spec, budget = world.service.spec, world.service.spec.scaling.gpu_budget
    before = {pool: _workers(world, pool) for pool in POOLS}
    waiting = {(pool, pod.revision) for pool in POOLS for pod in before[pool] if pod.unschedulable and not pod.ready}
    held, ready = _gpus(world), {pool: len(world.ready(pool)) for pool in POOLS}
    differ = {pool: _sizes_differ(world, pool) for pool in POOLS}  # also if the last old one goes in this pass
    for action in world.steps(broken_off):
        assert _gpus(world) <= max(budget, held)
        sizes = {pool: len(_workers(world, pool)) for pool in POOLS}
        if not (isinstance(action, Apply) and action.item["kind"] == "Pod" and "spec" in action.item):
            continue
        started = world.pods[action.item["metadata"]["name"]]
        pool, revision = started.pool, started.revision
        assert (pool, revision) not in waiting, "one like it has no place"
        if pool in POOLS and len(before[pool]) < sizes[pool] - _going(world, before[pool]) <= _targets(world)[pool]:
            other, size = pool_sizes.other(pool), sizes[pool] - _going(world, before[pool])
            beside = sizes[other], sizes[other] - _going(world, before[other])
            assert any(pool_sizes.keeps_ratio(spec, pool, size, count) for count in beside)
    for pool, target in _targets(world).items():
        rolling = any(pod.revision != world.made.status["pools"][pool]["revision"] for pod in before[pool])
        fewest = roles.bounds(spec, pool).min - (_spare(world) if rolling else 0)
        assert len(_workers(world, pool)) >= min(len(before[pool]), fewest)
        # Old workers hold what more of the new ones need.
        taken = 1 if differ[pool] or _sizes_differ(world, pool) else 0
        assert len(world.ready(pool)) >= min(ready[pool] - taken, target - _spare(world))


def _sizes_differ(world, pool):
    return {pod.devices.get(GPU, 0) for pod in _workers(world, pool)} != {world.gpus[POOLS.index(pool)]}


def _spare(world):
    """A full budget lets a worker go before the next one starts."""
    return max(1, world.unavailable)


def _disturb(world, data):
    events = [(world.come_up, pod) for pod in world.starting()] + [(world.go, pod) for pod in world.going()]
    events += [(world.crash, pod) for pool in POOLS for pod in world.ready(pool)[:1]]
    events += [(world.work, pod) for pool in POOLS for pod in world.ready(pool)[:1]]
    events += [(world.find_no_node, pod) for pod in world.starting()[:1]]
    events += [(world.end, pod) for pool in POOLS for pod in world.staying(pool)[:1]]
    happen, about = data.draw(st.sampled_from(events)) if events else (None, None)
    if happen is not None:
        happen(about)


def _check_settled(world):
    world.settle()
    targets = _targets(world)
    for pool in POOLS:
        assert len(world.ready(pool)) == world.existing(pool) == targets[pool]
        assert targets[pool] >= roles.bounds(world.service.spec, pool).min
    assert _gpus(world) <= world.service.spec.scaling.gpu_budget
    for pool in POOLS:
        assert pool_sizes.keeps_ratio(world.service.spec, pool, targets[pool], targets[pool_sizes.other(pool)])


sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))
bounds = st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(any)
ratios = st.tuples(st.integers(1, 4), st.integers(1, 4))
gpus = st.tuples(st.integers(1, 2), st.integers(1, 2))
broken_off = st.one_of(st.none(), st.integers(0, 6))


@settings(deadline=None, max_examples=budget.times(8))
@given(wishes=sizes, bounds=bounds, ratios=ratios, gpus=gpus, budget=st.integers(4, 14), data=st.data())
def test_no_step_of_a_burst_a_rollout_or_a_drain_exceeds_a_limit(wishes, bounds, ratios, gpus, budget, data):
    world = World(wishes, bounds, scaling=_scaling(budget, ratios=ratios), gpus=gpus)
    chunks = data.draw(st.lists(st.sampled_from([GOOD, OTHER]), max_size=3))
    for chunk in [GOOD, *chunks]:
        world.edit(chunk)
        for _ in range(data.draw(st.integers(0, 12))):
            _checked_look(world, data.draw(broken_off))
            _disturb(world, data)
            if data.draw(st.integers(0, 3)) == 0:
                world.scale(data.draw(st.sampled_from(POOLS)), data.draw(st.integers(0, 9)))
    _check_settled(world)
    assert {chunk for pool in POOLS for chunk in world.chunks(pool)} == {world.chunk}


@settings(deadline=None, max_examples=budget.times(8))
@given(bounds=bounds, before=gpus, after=gpus, budget=st.integers(4, 9), data=st.data())
def test_workers_with_other_gpus_replace_the_old_ones_within_the_budget(bounds, before, after, budget, data):
    world = World((9, 9), bounds, scaling=_scaling(budget), gpus=before)
    world.settle()
    world.edit(GOOD, after)
    for _ in range(data.draw(st.integers(0, 20))):
        _checked_look(world, data.draw(broken_off))
        _disturb(world, data)
    _check_settled(world)


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({"failed": True}, 0),
        ({"leaving": True, "lost": True}, 0),
        ({"draining_since": 1.0, "leaving": True}, 2),
        ({}, 2),
    ],
)
def test_pod_holds_its_gpus_until_it_ended_or_was_lost(changes, held):
    pod = Pod("a", "1", "decode", "r", "1", False, False, devices={GPU: 2, "example.com/nic": 1})
    assert GpuBudget(8, (GPU, "example.com/slice")).in_use([dataclasses.replace(pod, **changes)]) == held
