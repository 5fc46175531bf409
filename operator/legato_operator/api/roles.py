"""Roles of a service's workers, each with its pool, and the spec's settings of each role. Pure."""

from collections.abc import Sequence

from legato_operator.api import quantities
from legato_operator.api.resources import Bounds, Pool, Spec

PREFILL = "prefill"
DECODE = "decode"
BOTH = (PREFILL, DECODE)


def with_pool(spec: Spec) -> tuple[str, ...]:
    """Returns the roles that have a pool. The decode pool holds `unified` workers if prefill has none."""
    return (DECODE, PREFILL) if spec.disaggregated else (DECODE,)


def pool(spec: Spec, role: str) -> Pool:
    """Returns the spec of a role's pool."""
    return spec.prefill if role == PREFILL else spec.decode


def bounds(spec: Spec, role: str) -> Bounds:
    """Returns the bounds of a role's number of workers; with `mode: Fixed`, both are the pool's replicas."""
    if spec.scaling.mode == "Fixed":
        fixed = pool(spec, role).replicas or 0
        return Bounds(min=fixed, max=fixed)
    return spec.scaling.prefill if role == PREFILL else spec.scaling.decode


def initial_replicas(spec: Spec, role: str) -> int:
    """Returns the number of workers of a role before anyone scales it.

    At least one with scaling, even if the minimum is 0, so that a revision that cannot start fails when it is applied
    and not at the first request.
    """
    fewest = bounds(spec, role).min
    return fewest if spec.scaling.mode == "Fixed" else max(fewest, 1)


def may_be_empty(spec: Spec) -> bool:
    """True if the service may have no workers at all."""
    return bounds(spec, DECODE).min == 0


def ranks(spec: Spec, role: str) -> int:
    """Returns the ranks of one worker of a role: the degree of tensor parallelism."""
    return pool(spec, role).parallelism.tensor


def gpus(spec: Spec, role: str, names: Sequence[str] = (quantities.GPU,)) -> int:
    """Returns the GPUs of one worker of a role: its requests for resources of these names."""
    resources = pool(spec, role).resources
    given = {**resources.limits, **resources.requests}
    return sum(int(quantities.quantity(given[name])) for name in names if name in given)
