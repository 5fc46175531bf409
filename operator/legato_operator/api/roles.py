"""The roles of a service's workers, and what its spec says of each. The pool of a role holds its workers. Pure."""

from collections.abc import Sequence

from legato_operator.api import quantities
from legato_operator.api.resources import Bounds, Pool, Spec

PREFILL = "prefill"
DECODE = "decode"
BOTH = (PREFILL, DECODE)


def of(spec: Spec) -> tuple[str, ...]:
    """The roles that have a pool. The decode pool holds `unified` workers when prefill has no pool of its own."""
    return (DECODE, PREFILL) if spec.disaggregated else (DECODE,)


def pool(spec: Spec, role: str) -> Pool:
    """What the spec says of a role's workers."""
    return spec.prefill if role == PREFILL else spec.decode


def bounds(spec: Spec, role: str) -> Bounds:
    """How many workers a role may have; with `mode: Fixed`, as many as its pool says."""
    if spec.scaling.mode == "Fixed":
        fixed = pool(spec, role).replicas or 0
        return Bounds(min=fixed, max=fixed)
    return spec.scaling.prefill if role == PREFILL else spec.scaling.decode


def initial_replicas(spec: Spec, role: str) -> int:
    """How many workers a role has before anyone scaled it.

    One where there may be none: so a revision that cannot start is noticed when it is applied, and not by a request.
    """
    fewest = bounds(spec, role).min
    return fewest if spec.scaling.mode == "Fixed" else max(fewest, 1)


def may_be_empty(spec: Spec) -> bool:
    """Whether the service may be without any worker."""
    return bounds(spec, DECODE).min == 0


def gpus(spec: Spec, role: str, names: Sequence[str] = (quantities.GPU,)) -> int:
    """How many GPUs one worker of a role takes: what it requests of resources of these names."""
    resources = pool(spec, role).resources
    given = {**resources.limits, **resources.requests}
    return sum(int(quantities.quantity(given[name])) for name in names if name in given)
