"""How many workers each pool gets: the desired number, within the bounds and the GPU budget. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legato_operator.api import quantities, roles
from legato_operator.api.resources import Spec


@dataclass(frozen=True)
class PoolTarget:
    """`replicas` to create, and, where that is not the desired number, the field that limits it."""

    replicas: int
    capped_by: str = ""


def targets(
    spec: Spec, desired: Mapping[str, int], gpu_resources: Sequence[str] = (quantities.GPU,)
) -> dict[str, PoolTarget]:
    """What each pool gets. Decode goes first within a budget: prefill alone serves nobody."""
    left = spec.scaling.gpu_budget
    result: dict[str, PoolTarget] = {}
    for pool in roles.of(spec):
        target = _within_bounds(spec, pool, desired.get(pool, roles.initial_replicas(spec, pool)))
        each = roles.gpus(spec, pool, gpu_resources)
        if left is not None and each:
            if left // each < target.replicas:
                target = PoolTarget(left // each, "scaling.gpuBudget")
            left -= target.replicas * each
        result[pool] = target
    return result


def _within_bounds(spec: Spec, pool: str, desired: int) -> PoolTarget:
    if spec.scaling.mode == "Fixed":
        return PoolTarget(roles.initial_replicas(spec, pool))
    bounds = roles.bounds(spec, pool)
    if desired > bounds.max:
        return PoolTarget(bounds.max, f"scaling.{pool}.max")
    if desired < bounds.min:
        return PoolTarget(bounds.min, f"scaling.{pool}.min")
    return PoolTarget(desired)
