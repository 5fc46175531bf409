"""Rules of the pools: their sizes, scaling, rollout, and hand-offs of KV."""

from legato_operator.api import pool_sizes, roles
from legato_operator.api.resources import Bounds, Scaling, Spec
from legato_operator.api.rules.rule import Rule

_NONE = (0, "0%")  # of the workers
_EMPTY_DECODE = "must be at least 1: without decode workers nothing can be served"


def _minima(scaling: Scaling) -> str:
    return f"decode {scaling.decode.min}, prefill {scaling.prefill.min}: prefill workers need a decode worker"


def _prefill_may_be_absent(spec: Spec) -> bool:
    prefill = spec.scaling.prefill
    return prefill.min >= 1 or prefill.max == 0 or spec.routing.when_prefill_unavailable == "Local"


def _ratio_can_hold(role: str) -> str:
    """Returns CEL that compares minimum and maximum, with the defaults of absent bounds and of an absent `min`."""
    other, each = pool_sizes.other(role), f"self.scaling.{pool_sizes.RATIOS[role]}"
    most = f"(has(self.scaling.{other}) ? self.scaling.{other}.max : {Bounds().max})"
    implied = f"(self.scaling.{role}.max == 0 ? 0 : {Bounds().min})"
    given = f"(has(self.scaling.{role}.min) ? self.scaling.{role}.min : {implied})"
    fewest = f"(has(self.scaling.{role}) ? {given} : {Bounds().min})"
    bounds = f"{most} == 0 || {fewest} <= {each} * {most}"
    replicas = f"!has(self.{role}.replicas) || !has(self.{other}.replicas) || self.{other}.replicas == 0"
    fixed = f"{replicas} || self.{role}.replicas <= {each} * self.{other}.replicas"
    return f"self.scaling.mode == 'Fixed' ? ({fixed}) : ({bounds})"


def _role_rules(role: str) -> tuple[Rule, ...]:
    return (
        Rule(
            at="spec",
            field=f"{role}.replicas",
            message="required with scaling.mode Fixed",
            holds=lambda spec: spec.scaling.mode != "Fixed" or roles.pool(spec, role).replicas is not None,
            cel=f"self.scaling.mode != 'Fixed' || has(self.{role}.replicas)",
        ),
        Rule(
            at="spec",
            field=f"{role}.replicas",
            message=f"only allowed with scaling.mode Fixed; use scaling.{role}.min",
            holds=lambda spec: spec.scaling.mode == "Fixed" or roles.pool(spec, role).replicas is None,
            cel=f"self.scaling.mode == 'Fixed' || !has(self.{role}.replicas)",
        ),
        Rule(
            at="spec.scaling",
            field=role,
            message=f"not allowed with scaling.mode Fixed; use {role}.replicas",
            holds=lambda scaling: scaling.mode != "Fixed" or role not in scaling.model_fields_set,
            cel=f"self.mode != 'Fixed' || !has(self.{role})",
        ),
        Rule(
            at=f"spec.scaling.{role}",
            field="",
            message="min must be at most max",
            holds=lambda bounds: bounds.min <= bounds.max,
            cel="!has(self.min) || self.min <= self.max",
        ),
        Rule(
            at="spec",
            field=f"scaling.{pool_sizes.RATIOS[role]}",
            message=f"cannot be kept: the minimum of {role} exceeds the ratio to the other pool's maximum",
            holds=lambda spec: not pool_sizes.unfit_ratio(spec, role),
            cel=_ratio_can_hold(role),
            arithmetic=lambda spec: pool_sizes.unfit_ratio(spec, role),
        ),
    )


RULES = (
    Rule(
        at="spec.transfer",
        field="nodeMemory",
        message="On needs checksum: only checksums detect a block that was reused while it was read",
        holds=lambda transfer: transfer.node_memory != "On" or transfer.checksum,
        cel="!has(self.nodeMemory) || self.nodeMemory != 'On' || self.checksum",
    ),
    Rule(
        at="spec.transfer",
        field="nodeMemory",
        message="On is not allowed with rdma.sharedMemory, which hides the node's /dev/shm",
        holds=lambda given: given.node_memory != "On" or given.rdma is None or given.rdma.shared_memory is None,
        cel="!has(self.nodeMemory) || self.nodeMemory != 'On' || !has(self.rdma) || !has(self.rdma.sharedMemory)",
    ),
    Rule(
        at="spec.transfer",
        field="required",
        message="only allowed with a transport other than Auto",
        holds=lambda transfer: not transfer.required or transfer.transport != "Auto",
        cel="!self.required || self.transport != 'Auto'",
    ),
    Rule(
        at="spec.rollout",
        field="",
        message="maxSurge and maxUnavailable must not both be 0: no worker could ever be replaced",
        holds=lambda rollout: rollout.max_surge not in _NONE or rollout.max_unavailable not in _NONE,
        cel="!(string(self.maxSurge) in ['0', '0%']) || !(string(self.maxUnavailable) in ['0', '0%'])",
    ),
    Rule(
        at="spec.rollout",
        field="maxSurge",
        message="must not be 0 with canary: the old revision stays complete while new workers are compared with it",
        holds=lambda rollout: rollout.canary is None or rollout.max_surge not in _NONE,
        cel="!has(self.canary) || !(string(self.maxSurge) in ['0', '0%'])",
    ),
    Rule(
        at="spec.scaling",
        field="decode.max",
        message=_EMPTY_DECODE,
        holds=lambda scaling: scaling.mode == "Fixed" or scaling.decode.max >= 1,
        cel="self.mode == 'Fixed' || !has(self.decode) || self.decode.max >= 1",
    ),
    Rule(
        at="spec.scaling",
        field="decode.min",
        message="can be 0 only if prefill.min is 0, too",
        holds=lambda scaling: scaling.decode.min >= 1 or scaling.prefill.min == 0,
        cel="!has(self.decode) || !has(self.decode.min) || self.decode.min >= 1 || "
        "(has(self.prefill) && (has(self.prefill.min) ? self.prefill.min : self.prefill.max) == 0)",
        arithmetic=_minima,
    ),
    Rule(
        at="spec",
        field="scaling.prefill.min",
        message="can be 0 only if routing.whenPrefillUnavailable is Local: otherwise no worker would prefill",
        holds=_prefill_may_be_absent,
        cel="self.routing.whenPrefillUnavailable == 'Local' || "
        "!has(self.scaling.prefill) || !has(self.scaling.prefill.min) || self.scaling.prefill.min >= 1 || "
        "self.scaling.prefill.max == 0",
    ),
    Rule(
        at="spec",
        field="decode.replicas",
        message=_EMPTY_DECODE,
        holds=lambda spec: spec.scaling.mode != "Fixed" or spec.decode.replicas != 0,
        cel="self.scaling.mode != 'Fixed' || !has(self.decode.replicas) || self.decode.replicas >= 1",
    ),
    *(rule for role in roles.BOTH for rule in _role_rules(role)),
    Rule(
        at="spec",
        field="scaling.gpuBudget",
        message="must be at least the number of GPUs of the smallest pools",
        holds=lambda spec: not pool_sizes.unfit_budget(spec),
        arithmetic=pool_sizes.unfit_budget,
    ),
)
