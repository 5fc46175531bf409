"""Fields that are right one by one and impossible together. Each check gives (path, message) or nothing."""

from collections.abc import Callable, Iterator

from legato_operator.api import quantities
from legato_operator.api.quantities import GPU
from legato_operator.api.resources import Spec
from legato_operator.api.roles import gpus

Problem = tuple[str, str]
MOST_CPUS = 1024  # of one worker


def problems(spec: Spec) -> list[Problem]:
    """Everything in a spec that cannot be meant together."""
    return [problem for check in _CHECKS for problem in check(spec)]


def _one_source(spec: Spec) -> Iterator[Problem]:
    given = [
        field.alias for name, field in type(spec.model.source).model_fields.items() if getattr(spec.model.source, name)
    ]
    if len(given) != 1:
        found = " and ".join(str(name) for name in given) or "none of them"
        yield "spec.model.source", f"give exactly one of builtin, huggingFace, pvc, path or image; found {found}"


def _bounds_in_order(spec: Spec) -> Iterator[Problem]:
    for role, bounds in (("prefill", spec.scaling.prefill), ("decode", spec.scaling.decode)):
        if bounds.min > bounds.max:
            yield f"spec.scaling.{role}", f"min {bounds.min} is above max {bounds.max}"


def _decode_exists(spec: Spec) -> Iterator[Problem]:
    if spec.scaling.mode != "Fixed" and spec.scaling.decode.max == 0:
        yield "spec.scaling.decode.max", "must be at least 1: without decode workers nothing can be served"
    if spec.scaling.mode == "Fixed" and spec.decode.replicas == 0:
        yield "spec.decode.replicas", "must be at least 1: without decode workers nothing can be served"


def _fixed_has_replicas(spec: Spec) -> Iterator[Problem]:
    for role, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        if spec.scaling.mode == "Fixed" and pool.replicas is None:
            yield f"spec.{role}.replicas", "required with scaling.mode Fixed"
        if spec.scaling.mode != "Fixed" and pool.replicas is not None:
            yield f"spec.{role}.replicas", f"only with scaling.mode Fixed; {spec.scaling.mode} uses scaling.{role}.min"


def _fixed_has_no_bounds(spec: Spec) -> Iterator[Problem]:
    for role in ("prefill", "decode"):
        if spec.scaling.mode == "Fixed" and role in spec.scaling.model_fields_set:
            yield f"spec.scaling.{role}", f"min and max mean nothing with scaling.mode Fixed; use spec.{role}.replicas"


def _rollout_can_move(spec: Spec) -> Iterator[Problem]:
    if spec.rollout.max_surge == 0 and spec.rollout.max_unavailable == 0:
        yield "spec.rollout", "maxSurge and maxUnavailable cannot both be 0: no worker could ever be replaced"


def _chunk_fits(spec: Spec) -> Iterator[Problem]:
    if spec.engine.chunk_tokens < spec.engine.block_size:
        yield "spec.engine.chunkTokens", f"must be at least blockSize, which is {spec.engine.block_size}"


def _required_transport(spec: Spec) -> Iterator[Problem]:
    if spec.transfer.required and spec.transfer.transport == "Auto":
        yield "spec.transfer.required", "needs a transport other than Auto to require"


def _whole_gpus(spec: Spec) -> Iterator[Problem]:
    for role in ("prefill", "decode"):
        resources = getattr(spec, role).resources
        for kind, amounts in (("requests", resources.requests), ("limits", resources.limits)):
            amount = quantities.quantity(amounts.get(GPU, "0"))
            if amount != int(amount):
                yield f"spec.{role}.resources.{kind}.{GPU}", f"must be a whole number, not {amounts[GPU]!r}"


def _countable_cpus(spec: Spec) -> Iterator[Problem]:
    for role in ("prefill", "decode"):
        cpus = quantities.quantity(getattr(spec, role).resources.requests.get("cpu", "1"))
        if not 0 < cpus <= MOST_CPUS:
            yield f"spec.{role}.resources.requests.cpu", f"must be above 0 and at most {MOST_CPUS}"


def _budget_holds_minimum(spec: Spec) -> Iterator[Problem]:
    budget = spec.scaling.gpu_budget
    needed = gpus(spec, "prefill") * _least(spec, "prefill") + gpus(spec, "decode") * _least(spec, "decode")
    if budget is not None and needed > budget:
        yield "spec.scaling.gpuBudget", f"is {budget}, but the smallest pools need {needed} GPUs"


def _least(spec: Spec, role: str) -> int:
    if spec.scaling.mode == "Fixed":
        return int(getattr(spec, role).replicas or 0)
    return int(getattr(spec.scaling, role).min)


_CHECKS: tuple[Callable[[Spec], Iterator[Problem]], ...] = (
    _one_source,
    _bounds_in_order,
    _decode_exists,
    _fixed_has_replicas,
    _fixed_has_no_bounds,
    _rollout_can_move,
    _chunk_fits,
    _required_transport,
    _whole_gpus,
    _countable_cpus,
    _budget_holds_minimum,
)
