"""How many workers each pool gets: the wishes, within the bounds and the GPU budget. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from legato_operator.api.combinations import GPU, gpus
from legato_operator.api.resources import Bounds, Spec


@dataclass(frozen=True)
class Target:
    """`replicas` to create, and, where that is not what was wished for, what capped it."""

    replicas: int
    capped_by: str = ""


PREFILL = "prefill"
DECODE = "decode"


def pools(spec: Spec) -> tuple[str, ...]:
    """A service's pools. The decode pool holds `unified` workers when prefill has no pool of its own."""
    return (DECODE, PREFILL) if spec.disaggregated else (DECODE,)


def wish_at_first(spec: Spec, pool: str) -> int:
    """How many workers a pool has before anyone scaled it."""
    if spec.scaling.mode == "Fixed":
        return (spec.prefill if pool == PREFILL else spec.decode).replicas or 0
    return max(_bounds(spec, pool).min, 1)


def targets(spec: Spec, wishes: Mapping[str, int], gpu_resources: Sequence[str] = (GPU,)) -> dict[str, Target]:
    """What each pool gets. Decode goes first within a budget: prefill alone serves nobody."""
    left = spec.scaling.gpu_budget
    result: dict[str, Target] = {}
    for pool in pools(spec):
        target = _within_bounds(spec, pool, wishes.get(pool, wish_at_first(spec, pool)))
        each = gpus(spec, pool, gpu_resources)
        if left is not None and each:
            if left // each < target.replicas:
                target = Target(left // each, "scaling.gpuBudget")
            left -= target.replicas * each
        result[pool] = target
    return result


def _bounds(spec: Spec, pool: str) -> Bounds:
    return spec.scaling.prefill if pool == PREFILL else spec.scaling.decode


def _within_bounds(spec: Spec, pool: str, wish: int) -> Target:
    if spec.scaling.mode == "Fixed":
        return Target(wish_at_first(spec, pool))
    bounds = _bounds(spec, pool)
    if wish > bounds.max:
        return Target(bounds.max, f"scaling.{pool}.max")
    if wish < bounds.min:
        return Target(bounds.min, f"scaling.{pool}.min")
    return Target(wish)
