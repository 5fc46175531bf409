"""How many workers each pool gets: the wishes, within the bounds and the GPU budget. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legato_operator.api import roles
from legato_operator.api.resources import Spec


@dataclass(frozen=True)
class Target:
    """`replicas` to create, and, where that is not what was wished for, what capped it."""

    replicas: int
    capped_by: str = ""


def targets(spec: Spec, wishes: Mapping[str, int], gpu_resources: Sequence[str] = (roles.GPU,)) -> dict[str, Target]:
    """What each pool gets. Decode goes first within a budget: prefill alone serves nobody."""
    left = spec.scaling.gpu_budget
    result: dict[str, Target] = {}
    for pool in roles.of(spec):
        target = _within_bounds(spec, pool, wishes.get(pool, roles.initial_replicas(spec, pool)))
        each = roles.gpus(spec, pool, gpu_resources)
        if left is not None and each:
            if left // each < target.replicas:
                target = Target(left // each, "scaling.gpuBudget")
            left -= target.replicas * each
        result[pool] = target
    return result


def _within_bounds(spec: Spec, pool: str, wish: int) -> Target:
    if spec.scaling.mode == "Fixed":
        return Target(roles.initial_replicas(spec, pool))
    bounds = roles.bounds(spec, pool)
    if wish > bounds.max:
        return Target(bounds.max, f"scaling.{pool}.max")
    if wish < bounds.min:
        return Target(bounds.min, f"scaling.{pool}.min")
    return Target(wish)
