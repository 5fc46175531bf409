"""Sizes that the pools of a spec may have together: bounds, the ratio between them, and the GPU budget. Pure."""

import math
from collections.abc import Sequence

from legato_operator.api import quantities, roles
from legato_operator.api.resources import Spec

RATIOS = {roles.PREFILL: "maxPrefillPerDecode", roles.DECODE: "maxDecodePerPrefill"}  # limits the larger pool


def per_other(spec: Spec, role: str) -> int:
    """Returns the maximum number of workers of a role for each worker of the other."""
    return spec.scaling.max_prefill_per_decode if role == roles.PREFILL else spec.scaling.max_decode_per_prefill


def other(role: str) -> str:
    return roles.DECODE if role == roles.PREFILL else roles.PREFILL


def keeps_ratio(spec: Spec, role: str, count: int, others: int) -> bool:
    """True if `count` workers of a role are allowed with `others` workers of the other role.

    An empty pool has no ratio: without prefill workers, decode workers prefill.
    """
    return not count or not others or count <= per_other(spec, role) * others


def smallest(spec: Spec) -> dict[str, int]:
    """Returns the fewest workers of each pool that satisfy every minimum and the ratio."""
    least = {role: roles.bounds(spec, role).min for role in roles.with_pool(spec)}
    for role in tuple(least):
        if least.get(other(role)):
            least[other(role)] = max(least[other(role)], math.ceil(least[role] / per_other(spec, role)))
    return least


def unfit_ratio(spec: Spec, role: str) -> str:
    """Returns the arithmetic of why no sizes within the bounds satisfy a role's ratio; empty if some do."""
    fewest, most, each = roles.bounds(spec, role).min, roles.bounds(spec, other(role)).max, per_other(spec, role)
    if not most or fewest <= each * most:
        return ""
    return f"{fewest} {role} workers at least > {RATIOS[role]} {each} × {most} {other(role)} workers at most"


def first_gpus(spec: Spec) -> int:
    """Returns the GPUs of all workers before anyone scales the pools."""
    least = smallest(spec)
    return sum(max(least[role], roles.initial_replicas(spec, role)) * roles.gpus(spec, role) for role in least)


def unfit_budget(spec: Spec, gpu_resources: Sequence[str] = (quantities.GPU,)) -> str:
    """Returns the arithmetic of why the smallest pools exceed the GPU budget; empty if they do not."""
    budget, least = spec.scaling.gpu_budget, smallest(spec)
    each = {role: roles.gpus(spec, role, gpu_resources) for role in least}
    needed = sum(count * each[role] for role, count in least.items())
    if budget is None or needed <= budget:
        return ""
    terms = " + ".join(f"{role} {count} × {each[role]}" for role, count in least.items() if each[role])
    return f"{terms} = {needed} > {budget}"
