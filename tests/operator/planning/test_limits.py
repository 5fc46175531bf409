"""How many workers each pool gets, and which field limits it."""

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from legato_operator.api import parsing, pool_sizes, roles
from legato_operator.errors import ManifestError
from legato_operator.planning import limits
from legato_operator.planning.limits import PoolTarget

SERVICE = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "demo"}}
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


@pytest.mark.parametrize(
    ("budget", "wishes", "given"),
    [
        (4, (1, 4), (1, 3)),  # prefill keeps its minimum
        (6, (3, 12), (2, 4)),  # decode stops at four for each prefill worker
        (8, (3, 12), (2, 6)),
        (9, (3, 2), (3, 2)),
        (3, (9, 9), (1, 2)),
    ],
)
def test_minima_come_first_and_what_they_leave_is_dealt_out_within_the_ratio(build, budget, wishes, given):
    gpu = {"resources": {"requests": {"nvidia.com/gpu": 1}}}
    bounds = {"min": 1, "max": 20}
    item = build(prefill=gpu, decode=gpu, scaling={"gpuBudget": budget, "prefill": bounds, "decode": bounds})
    found = _targets(item, prefill=wishes[0], decode=wishes[1])
    assert (found["prefill"].replicas, found["decode"].replicas) == given


@pytest.mark.parametrize(
    ("wishes", "prefill", "decode"),
    [
        ((1, 4), PoolTarget(2, "scaling.decode.min with scaling.maxDecodePerPrefill"), PoolTarget(4)),
        ((2, 9), PoolTarget(2), PoolTarget(6, "scaling.maxDecodePerPrefill")),
        ((9, 4), PoolTarget(8, "scaling.maxPrefillPerDecode"), PoolTarget(4)),
        ((0, 9), PoolTarget(0), PoolTarget(9)),  # decode workers prefill
    ],
)
def test_larger_pool_is_limited_by_the_ratio_and_no_further_than_its_minimum(build, wishes, prefill, decode):
    bounds = {"prefill": {"min": 0, "max": 9}, "decode": {"min": 4, "max": 9}}
    item = build(scaling={**bounds, "maxPrefillPerDecode": 2, "maxDecodePerPrefill": 3})
    assert _targets(item, prefill=wishes[0], decode=wishes[1]) == {"prefill": prefill, "decode": decode}


@st.composite
def _specs(draw):
    """A spec that the rules accept."""
    gpus = {role: draw(st.integers(0, 4)) for role in ("prefill", "decode")}
    least = {role: draw(st.integers(0, 3)) for role in gpus}
    bounds = {
        role: {"min": n, "max": n + draw(st.integers(role == "decode" and n == 0, 6))} for role, n in least.items()
    }
    ratios = {name: draw(st.integers(1, 4)) for name in ("maxPrefillPerDecode", "maxDecodePerPrefill")}
    budget = draw(st.none() | st.integers(1, 30))
    pools = {role: {"resources": {"requests": {"nvidia.com/gpu": count}}} for role, count in gpus.items()}
    try:
        scaling = {**bounds, **ratios, **({"gpuBudget": budget} if budget else {})}
        spec = {"model": {"source": {"path": "/model"}}, "scaling": scaling, **pools}
        return parsing.read_service({**SERVICE, "spec": spec}).spec
    except ManifestError:
        reject()


wishes = st.fixed_dictionaries({"prefill": st.integers(0, 12), "decode": st.integers(0, 12)})


@settings(deadline=None)
@given(spec=_specs(), desired=wishes)
def test_every_wish_ends_within_all_limits_and_what_is_limited_says_by_what(spec, desired):
    found = limits.targets(spec, desired)
    sizes = {pool: target.replicas for pool, target in found.items()}
    for pool, count in sizes.items():
        bounds = roles.bounds(spec, pool)
        assert bounds.min <= count <= bounds.max
        assert pool_sizes.keeps_ratio(spec, pool, count, sizes.get(pool_sizes.other(pool), 0))
        assert bool(found[pool].capped_by) is (count != desired[pool])
    if spec.scaling.gpu_budget is not None:
        assert sum(count * roles.gpus(spec, pool) for pool, count in sizes.items()) <= spec.scaling.gpu_budget


@settings(deadline=None)
@given(spec=_specs(), desired=wishes)
def test_nothing_more_would_fit(spec, desired):
    """A pool that the budget limits could not have one more, even alone."""
    found = limits.targets(spec, desired)
    used = sum(target.replicas * roles.gpus(spec, pool) for pool, target in found.items())
    for pool, target in found.items():
        if target.capped_by == limits.BUDGET:
            other, more = pool_sizes.other(pool), target.replicas + 1
            others = found[other].replicas if other in found else 0
            fits = used + roles.gpus(spec, pool) <= spec.scaling.gpu_budget
            in_ratio = pool_sizes.keeps_ratio(spec, pool, more, others)
            assert not (fits and in_ratio and pool_sizes.keeps_ratio(spec, other, others, more))


def test_empty_pool_gets_as_many_as_the_ratio_needs_or_none(build):
    """Two decode workers at least, one for each prefill worker: one prefill worker alone would break that."""
    gpu = {"resources": {"requests": {"nvidia.com/gpu": 1}}}
    bounds = {"prefill": {"min": 0, "max": 9}, "decode": {"min": 2, "max": 9}, "maxDecodePerPrefill": 1}
    for budget, sizes in ((3, (0, 3)), (4, (2, 2)), (5, (3, 2)), (6, (3, 3))):
        found = _targets(build(prefill=gpu, decode=gpu, scaling={**bounds, "gpuBudget": budget}), prefill=3, decode=9)
        assert (found["prefill"].replicas, found["decode"].replicas) == sizes


def test_workers_without_gpus_need_no_budget(build):
    item = build(decode=GPUS, scaling={"gpuBudget": 2})
    assert _targets(item, prefill=3, decode=2) == {
        "prefill": PoolTarget(3),
        "decode": PoolTarget(1, "scaling.gpuBudget"),
    }


def test_gpus_without_a_budget_are_not_limited(build):
    assert _targets(build(decode=GPUS), decode=4)["decode"] == PoolTarget(4)
