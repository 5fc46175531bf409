"""Workers that each pool gets, and the field that limits it."""

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from legato_operator.api import parsing, pool_sizes, roles
from legato_operator.errors import ManifestError
from legato_operator.planning.pools import limits
from legato_operator.planning.pools.limits import PoolTarget

SERVICE = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "demo"}}
ROLES = ("prefill", "decode")
BUDGET = "scaling.gpuBudget"
FIXED = {"scaling": {"mode": "Fixed"}, "prefill": {"replicas": 3}, "decode": {"replicas": 5}}


def _bounded(prefill, decode, gpus=(0, 0), **scaling):
    """Pools with these bounds and GPUs for each worker."""
    bounds = {role: {"min": least, "max": most} for role, (least, most) in zip(ROLES, (prefill, decode), strict=True)}
    pools = {
        role: {"resources": {"requests": {"nvidia.com/gpu": count}}}
        for role, count in zip(ROLES, gpus, strict=True)
        if count
    }
    return {"scaling": bounds | scaling, **pools}


def _budgeted(budget, least=0, most=4, gpus=(2, 2)):
    return _bounded((least, most), (least, most), gpus, gpuBudget=budget)


BOUNDS = _bounded((2, 4), (2, 4))
RATIOS = _bounded((0, 9), (4, 9), maxPrefillPerDecode=2, maxDecodePerPrefill=3)


@pytest.mark.parametrize(
    ("spec", "desired", "prefill", "decode"),
    [
        # Bounds.
        (BOUNDS, (3, 1), PoolTarget(3), PoolTarget(2, "scaling.decode.min")),
        (BOUNDS, (3, 2), PoolTarget(3), PoolTarget(2)),
        (BOUNDS, (3, 4), PoolTarget(3), PoolTarget(4)),
        (BOUNDS, (3, 5), PoolTarget(3), PoolTarget(4, "scaling.decode.max")),
        # A pool that was never scaled has its minimum.
        (BOUNDS, (), PoolTarget(2), PoolTarget(2)),
        # Fixed replicas are the manifest's, whatever anyone desires.
        (FIXED, (1, 9), PoolTarget(3), PoolTarget(5)),
        # Within a budget decode goes first.
        (_budgeted(8), (2, 2), PoolTarget(2), PoolTarget(2)),
        (_budgeted(7), (2, 2), PoolTarget(1, BUDGET), PoolTarget(2)),
        (_budgeted(5), (2, 2), PoolTarget(0, BUDGET), PoolTarget(2)),
        (_budgeted(3), (2, 2), PoolTarget(0, BUDGET), PoolTarget(1, BUDGET)),
        # Minima come first, and what they leave is dealt out up to four decode workers for each prefill worker.
        (_budgeted(4, 1, 20, (1, 1)), (1, 4), PoolTarget(1), PoolTarget(3, BUDGET)),
        (_budgeted(6, 1, 20, (1, 1)), (3, 12), PoolTarget(2, BUDGET), PoolTarget(4, BUDGET)),
        (_budgeted(8, 1, 20, (1, 1)), (3, 12), PoolTarget(2, BUDGET), PoolTarget(6, BUDGET)),
        (_budgeted(9, 1, 20, (1, 1)), (3, 2), PoolTarget(3), PoolTarget(2)),
        (_budgeted(3, 1, 20, (1, 1)), (9, 9), PoolTarget(1, BUDGET), PoolTarget(2, BUDGET)),
        # Workers without GPUs need no budget, and GPUs without a budget are not limited.
        (_bounded((0, 4), (0, 4), (0, 2), gpuBudget=2), (3, 2), PoolTarget(3), PoolTarget(1, BUDGET)),
        (_bounded((1, 4), (1, 4), (0, 2)), (1, 4), PoolTarget(1), PoolTarget(4)),
        # The ratio limits the larger pool, but not below its minimum. Without prefill workers decode workers prefill.
        (RATIOS, (1, 4), PoolTarget(2, "scaling.decode.min with scaling.maxDecodePerPrefill"), PoolTarget(4)),
        (RATIOS, (2, 9), PoolTarget(2), PoolTarget(6, "scaling.maxDecodePerPrefill")),
        (RATIOS, (9, 4), PoolTarget(8, "scaling.maxPrefillPerDecode"), PoolTarget(4)),
        (RATIOS, (0, 9), PoolTarget(0), PoolTarget(9)),
    ],
)
def test_limits_are_kept_and_named(build, spec, desired, prefill, decode):
    targets = limits.targets(parsing.read_service(build(**spec)).spec, dict(zip(ROLES, desired, strict=False)))
    assert targets == {"prefill": prefill, "decode": decode}


@pytest.mark.parametrize(("budget", "sizes"), [(3, (0, 3)), (4, (2, 2)), (5, (3, 2)), (6, (3, 3))])
def test_empty_pool_gets_as_many_as_the_ratio_needs_or_none(build, budget, sizes):
    """Two decode workers at least, one for each prefill worker: one prefill worker alone would break that."""
    spec = _bounded((0, 9), (2, 9), (1, 1), gpuBudget=budget, maxDecodePerPrefill=1)
    targets = limits.targets(parsing.read_service(build(**spec)).spec, {"prefill": 3, "decode": 9})
    assert tuple(targets[role].replicas for role in ROLES) == sizes


@st.composite
def _specs(draw):
    least = {"prefill": draw(st.integers(0, 3)), "decode": draw(st.integers(0, 3))}
    bounds = [(n, n + draw(st.integers(role == "decode" and n == 0, 6))) for role, n in least.items()]
    ratios = {name: draw(st.integers(1, 4)) for name in ("maxPrefillPerDecode", "maxDecodePerPrefill")}
    budget = draw(st.none() | st.integers(1, 30))
    gpus = draw(st.integers(0, 4)), draw(st.integers(0, 4))
    try:
        given = _bounded(*bounds, gpus, **ratios, **({"gpuBudget": budget} if budget else {}))
        return parsing.read_service({**SERVICE, "spec": {"model": {"source": {"path": "/model"}}, **given}}).spec
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
