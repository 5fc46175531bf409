"""How many workers each pool gets, and which field limits it."""

import pytest

from legato_operator.api import parsing
from legato_operator.planning import limits
from legato_operator.planning.limits import PoolTarget

GPUS = {"resources": {"requests": {"nvidia.com/gpu": 2}}}
BOUNDS = {"prefill": {"min": 2, "max": 4}, "decode": {"min": 2, "max": 4}}
FIXED = {"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 3}, "decode": {"replicas": 5}}


def _targets(item, **desired):
    return limits.targets(parsing.read_service(item).spec, desired)


@pytest.mark.parametrize(
    ("desired", "target"),
    [
        (1, PoolTarget(2, "scaling.decode.min")),
        (2, PoolTarget(2)),
        (4, PoolTarget(4)),
        (5, PoolTarget(4, "scaling.decode.max")),
    ],
)
def test_bounds_limit_what_is_desired_and_are_named(build, desired, target):
    assert _targets(build(scaling=BOUNDS), prefill=3, decode=desired) == {"prefill": PoolTarget(3), "decode": target}


def test_a_pool_that_was_never_scaled_has_its_minimum(build):
    assert _targets(build(scaling=BOUNDS)) == {"prefill": PoolTarget(2), "decode": PoolTarget(2)}


def test_fixed_replicas_are_the_manifest_s_whatever_anyone_desires(build):
    assert _targets(build(**FIXED), prefill=1, decode=9) == {"prefill": PoolTarget(3), "decode": PoolTarget(5)}


@pytest.mark.parametrize(
    ("budget", "prefill", "decode"),
    [
        (8, PoolTarget(2), PoolTarget(2)),
        (7, PoolTarget(1, "scaling.gpuBudget"), PoolTarget(2)),
        (5, PoolTarget(0, "scaling.gpuBudget"), PoolTarget(2)),
        (3, PoolTarget(0, "scaling.gpuBudget"), PoolTarget(1, "scaling.gpuBudget")),
    ],
)
def test_decode_goes_first_within_a_budget(build, budget, prefill, decode):
    bounds = {"min": 0, "max": 4}
    item = build(prefill=GPUS, decode=GPUS, scaling={"gpuBudget": budget, "prefill": bounds, "decode": bounds})
    assert _targets(item, prefill=2, decode=2) == {"prefill": prefill, "decode": decode}


def test_workers_without_gpus_need_no_budget(build):
    item = build(decode=GPUS, scaling={"gpuBudget": 2})
    assert _targets(item, prefill=3, decode=2) == {
        "prefill": PoolTarget(3),
        "decode": PoolTarget(1, "scaling.gpuBudget"),
    }


def test_gpus_without_a_budget_are_not_limited(build):
    assert _targets(build(decode=GPUS), decode=4)["decode"] == PoolTarget(4)
