"""Rules over several fields of a spec: one table, checked in Python and by the API server.

Each entry states a rule twice: as a predicate for manifests that no API server has seen, and in CEL for the CRD.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic.alias_generators import to_snake

from legato_operator.api import pool_sizes, quantities, roles
from legato_operator.api.quantities import GPU
from legato_operator.api.resources import (
    Bounds,
    Engine,
    GatewaySpec,
    Model,
    Resources,
    Rollout,
    Scaling,
    Source,
    Spec,
    Transfer,
)
from legato_protocol import names

_NONE = (0, "0%")  # of the workers
MAX_CPUS = 1024  # of one worker
_DEVICE = "[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-A-Za-z0-9_.]*"
_RESOURCE = re.compile(f"(cpu|memory|ephemeral-storage|hugepages-[0-9]+[KMGT]i|{_DEVICE})")
_ADDRESS = re.compile(r"[0-9]+([.][0-9]+)*")


@dataclass(frozen=True)
class Rule:
    """What must hold for the object at a path of the manifest."""

    at: str  # path of the object that `holds` is given, and that is `self` in CEL
    field: str  # path of the field to blame, from there; empty where it is the object itself
    message: str
    holds: Callable[[Any], bool]
    cel: str = ""  # empty where the API server cannot decide
    arithmetic: Callable[[Any], str] | None = None  # of an object that breaks it, for the end of the message

    @property
    def path(self) -> str:
        """The field to blame."""
        return f"{self.at}.{self.field}" if self.field else self.at

    def told(self, given: Any) -> str:
        """What is said of an object that breaks the rule."""
        return f"{self.message}: {self.arithmetic(given)}" if self.arithmetic else self.message

    def validation(self) -> dict[str, str]:
        """As an entry of `x-kubernetes-validations`."""
        found = {"rule": self.cel, "message": self.message}
        return {**found, "fieldPath": f".{self.field}"} if self.field else found


def problems(spec: Spec) -> list[tuple[str, str]]:
    """(path, message) of every rule that a spec breaks."""
    given = [(rule, _object(spec, rule.at)) for rule in RULES]
    return [(rule.path, rule.told(part)) for rule, part in given if part is not None and not rule.holds(part)]


def _object(spec: Spec, path: str) -> Any:
    """What stands at a path; None where nothing does."""
    found: Any = spec
    for name in path.split(".")[1:]:
        found = found and getattr(found, to_snake(name))
    return found


def _one_source(source: Source) -> bool:
    return sum(getattr(source, name) is not None for name in type(source).model_fields) == 1


def _adapters_have_one_source(model: Model) -> bool:
    return all(
        sum(getattr(adapter.source, name) is not None for name in type(adapter.source).model_fields) == 1
        for adapter in model.adapters
    )


def _adapters_stay_below(model: Model) -> bool:
    sources = [adapter.source for adapter in model.adapters]
    paths = [source.path for source in sources] + [source.pvc.path for source in sources if source.pvc]
    return all(_stays_below(path) for path in paths)


def _adapters_have_own_names(model: Model) -> bool:
    names = [adapter.name for adapter in model.adapters]
    return len(set(names)) == len(names) and model.served_name not in names


def _bounds_are_ordered(bounds: Bounds) -> bool:
    return bounds.min <= bounds.max


def _chunk_holds_a_block(engine: Engine) -> bool:
    return engine.chunk_tokens >= engine.block_size


def _hang_can_be_told(engine: Engine) -> bool:
    """Workers report every half second, and a third of it is silence; at most, so that a step's limit is a duration."""
    return 3 <= engine.hang_timeout <= 3600


def _required_transport_is_named(transfer: Transfer) -> bool:
    return not transfer.required or transfer.transport != "Auto"


def _rollout_can_progress(rollout: Rollout) -> bool:
    return rollout.max_surge not in _NONE or rollout.max_unavailable not in _NONE


def _decode_pool_is_not_empty(scaling: Scaling) -> bool:
    return scaling.mode == "Fixed" or scaling.decode.max >= 1


def _prefill_has_decode(scaling: Scaling) -> bool:
    return scaling.decode.min >= 1 or scaling.prefill.min == 0


def _minima(scaling: Scaling) -> str:
    return (
        f"decode {scaling.decode.min} beside prefill {scaling.prefill.min}, and prefill workers need one that decodes"
    )


def _prefill_may_be_absent(spec: Spec) -> bool:
    prefill = spec.scaling.prefill
    return prefill.min >= 1 or prefill.max == 0 or spec.routing.when_prefill_unavailable == "Local"


def _fixed_decode_pool_is_not_empty(spec: Spec) -> bool:
    return spec.scaling.mode != "Fixed" or spec.decode.replicas != 0


def _whole_gpus(amounts: Mapping[str, str]) -> bool:
    amount = quantities.quantity(amounts.get(GPU, "0"))
    return amount == int(amount)


def _is_whole(kind: str) -> str:
    """In CEL. Not `isInteger`, for which 2000m is no integer; Kubernetes accepts 2000m of a device."""
    amount = f"quantity(string(self.{kind}['{GPU}'])).asApproximateFloat()"
    return f"double(int({amount})) == {amount}"


def _are_known(amounts: Mapping[str, str]) -> bool:
    return all(_RESOURCE.fullmatch(name) for name in amounts)


def _limits_hold_requests(resources: Resources) -> bool:
    asked, most = resources.requests, resources.limits
    return all(quantities.quantity(asked[name]) <= quantities.quantity(most[name]) for name in asked.keys() & most)


def _devices_are_equal(resources: Resources) -> bool:
    asked, most = resources.requests, resources.limits
    both = [name for name in asked.keys() & most if "/" in name]
    return all(quantities.quantity(asked[name]) == quantities.quantity(most[name]) for name in both)


def _compared(names: str, comparison: str) -> str:
    """In CEL: what is requested against its limit, of every resource that has both."""
    asked, most = (f"quantity(string(self.{kind}[name]))" for kind in ("requests", "limits"))
    skipped = f"!(name in self.limits){names}"
    both = f"self.requests.all(name, {skipped} || {asked}.compareTo({most}) {comparison} 0)"
    return f"!has(self.requests) || !has(self.limits) || {both}"


def _stays_below(path: str | None) -> bool:
    return path is None or ".." not in path.split("/")


def _no_way_up(at: str, field: str) -> Rule:
    """Kubernetes mounts no path with `..`, and a volume's would leave the volume."""
    return Rule(
        at=at,
        field=field,
        message="must not contain ..",
        holds=lambda given: _stays_below(getattr(given, to_snake(field))),
        cel=f"!has(self.{field}) || !self.{field}.matches('(^|/)[.][.](/|$)')",
    )


def _countable_cpus(resources: Resources) -> bool:
    return 0 < quantities.quantity(resources.requests.get("cpu", "1")) <= MAX_CPUS


def _ratio_can_hold(role: str) -> str:
    """In CEL. `min` and `max` stand for what their absence means: only `max` is filled in, in bounds that are given."""
    beside, each = pool_sizes.other(role), f"self.scaling.{pool_sizes.RATIOS[role]}"
    most = f"(has(self.scaling.{beside}) ? self.scaling.{beside}.max : {Bounds().max})"
    implied = f"(self.scaling.{role}.max == 0 ? 0 : {Bounds().min})"
    given = f"(has(self.scaling.{role}.min) ? self.scaling.{role}.min : {implied})"
    fewest = f"(has(self.scaling.{role}) ? {given} : {Bounds().min})"
    bounds = f"{most} == 0 || {fewest} <= {each} * {most}"
    replicas = f"!has(self.{role}.replicas) || !has(self.{beside}.replicas) || self.{beside}.replicas == 0"
    fixed = f"{replicas} || self.{role}.replicas <= {each} * self.{beside}.replicas"
    return f"self.scaling.mode == 'Fixed' ? ({fixed}) : ({bounds})"


def _of_role(role: str) -> tuple[Rule, ...]:
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
            holds=_bounds_are_ordered,
            cel="!has(self.min) || self.min <= self.max",
        ),
        Rule(
            at="spec",
            field=f"scaling.{pool_sizes.RATIOS[role]}",
            message=f"cannot be kept: the minimum of {role} is more than it allows beside the other pool's maximum",
            holds=lambda spec: not pool_sizes.unfit_ratio(spec, role),
            cel=_ratio_can_hold(role),
            arithmetic=lambda spec: pool_sizes.unfit_ratio(spec, role),
        ),
    )


def _of_resources(at: str) -> tuple[Rule, ...]:
    return (
        Rule(
            at=at,
            field="limits",
            message="must not be below requests",
            holds=_limits_hold_requests,
            cel=_compared("", "<="),
        ),
        Rule(
            at=at,
            field="limits",
            message="of devices must be the same as requested",
            holds=_devices_are_equal,
            cel=_compared(" || !name.contains('/')", "=="),
        ),
        *(
            Rule(
                at=at,
                field=kind,
                message="names must be cpu, memory, ephemeral-storage, hugepages-SIZE or like nvidia.com/gpu",
                holds=lambda resources, kind=kind: _are_known(getattr(resources, kind)),  # type: ignore[misc]
                cel=f"!has(self.{kind}) || self.{kind}.all(name, name.matches('^{_RESOURCE.pattern}$'))",
            )
            for kind in ("requests", "limits")
        ),
        *(
            Rule(
                at=at,
                field=kind,
                message=f"{GPU} must be a whole number",
                holds=lambda resources, kind=kind: _whole_gpus(getattr(resources, kind)),  # type: ignore[misc]
                cel=f"!has(self.{kind}) || !('{GPU}' in self.{kind}) || {_is_whole(kind)}",
            )
            for kind in ("requests", "limits")
        ),
        Rule(
            at=at,
            field="requests",
            message=f"cpu must be greater than 0 and at most {MAX_CPUS}",
            holds=_countable_cpus,
            cel="!has(self.requests) || !('cpu' in self.requests) || "
            "(quantity(string(self.requests['cpu'])).isGreaterThan(quantity('0')) && "
            f"quantity(string(self.requests['cpu'])).compareTo(quantity('{MAX_CPUS}')) <= 0)",
        ),
    )


def _one_place_of_keys(gateway: GatewaySpec) -> bool:
    keys = gateway.api_keys
    return keys is None or (keys.secret is None) != (keys.path is None)


def _one_place_of_certificate(gateway: GatewaySpec) -> bool:
    tls = gateway.tls
    return tls is None or (tls.secret is None) != (tls.path is None)


def _tenants_are_known(gateway: GatewaySpec) -> bool:
    return not gateway.tenant_tokens_per_minute.keys() - {"*"} or bool(gateway.api_keys or gateway.trusted_proxies)


def _of_hosts(part: str, field: str) -> tuple[Rule, ...]:
    """Of a way in from outside. As in the Gateway API: an address is no host name."""
    at = f"spec.gateway.{part}"
    given = f"!has(self.{field}) || self.{field}" if field == "hostnames" else f"self.{field}"

    def hosts(part: Any) -> list[str]:
        return list(getattr(part, field))

    return (
        Rule(
            at=at,
            field=field,
            message="must be names of hosts, not addresses",
            holds=lambda part: not any(_ADDRESS.fullmatch(host) for host in hosts(part)),
            cel=f"{given}.all(host, !host.matches('^{_ADDRESS.pattern}$'))",
        ),
        Rule(
            at=at,
            field=field,
            message="must not name a host twice",
            holds=lambda part: len(set(hosts(part))) == len(hosts(part)),
            cel=f"{given}.all(host, self.{field}.exists_one(other, other == host))",
        ),
        Rule(
            at=at,
            field="annotations",
            message=f"must not be {names.API_GROUP}/'s, which are the operator's",
            holds=lambda part: not any(key.startswith(f"{names.API_GROUP}/") for key in part.annotations),
            cel=f"!has(self.annotations) || self.annotations.all(key, !key.startsWith('{names.API_GROUP}/'))",
        ),
    )


_RESOURCES = (
    "spec.prefill.resources",
    "spec.decode.resources",
    "spec.gateway.resources",
    "spec.model.source.huggingFace.resources",
)
_EMPTY_DECODE = "must be at least 1: without decode workers nothing can be served"
RULES: tuple[Rule, ...] = (
    Rule(
        at="spec.model.source",
        field="",
        message="exactly one of builtin, huggingFace, pvc, path and image must be set",
        holds=_one_source,
        cel="[has(self.builtin), has(self.huggingFace), has(self.pvc), has(self.path), has(self.image)]"
        ".filter(given, given).size() == 1",
    ),
    _no_way_up("spec.model.source", "path"),
    _no_way_up("spec.model.source.pvc", "path"),
    _no_way_up("spec.model.source.huggingFace", "nodeCache"),
    Rule(
        at="spec.model",
        field="adapters",
        message="exactly one of pvc, path and image must be set for each adapter's source",
        holds=_adapters_have_one_source,
        cel="!has(self.adapters) || self.adapters.all(a, "
        "[has(a.source.pvc), has(a.source.path), has(a.source.image)].filter(given, given).size() == 1)",
    ),
    Rule(
        at="spec.model",
        field="adapters",
        message="paths must not contain ..",
        holds=_adapters_stay_below,
        cel="!has(self.adapters) || self.adapters.all(a, "
        "(!has(a.source.path) || !a.source.path.matches('(^|/)[.][.](/|$)')) && "
        "(!has(a.source.pvc) || !has(a.source.pvc.path) || !a.source.pvc.path.matches('(^|/)[.][.](/|$)')))",
    ),
    Rule(
        at="spec.model",
        field="adapters",
        message="names must differ from one another and from servedName",
        holds=_adapters_have_own_names,
        cel="!has(self.adapters) || self.adapters.all(a, self.adapters.exists_one(b, b.name == a.name) && "
        "(!has(self.servedName) || a.name != self.servedName))",
    ),
    Rule(
        at="spec.engine",
        field="hangTimeout",
        message="must be from 3s to 1h",
        holds=_hang_can_be_told,
        cel="duration(self.hangTimeout) >= duration('3s') && duration(self.hangTimeout) <= duration('1h')",
    ),
    Rule(
        at="spec.engine",
        field="chunkTokens",
        message="must be at least blockSize",
        holds=_chunk_holds_a_block,
        cel="self.chunkTokens >= self.blockSize",
    ),
    Rule(
        at="spec.engine",
        field="profile",
        message="required with runner Paced",
        holds=lambda engine: engine.runner != "Paced" or engine.profile is not None,
        cel="self.runner != 'Paced' || has(self.profile)",
    ),
    Rule(
        at="spec.engine",
        field="profile",
        message="only allowed with runner Paced",
        holds=lambda engine: engine.runner == "Paced" or engine.profile is None,
        cel="self.runner == 'Paced' || !has(self.profile)",
    ),
    Rule(
        at="spec.gateway",
        field="apiKeys",
        message="exactly one of secret and path must be set",
        holds=_one_place_of_keys,
        cel="!has(self.apiKeys) || has(self.apiKeys.secret) != has(self.apiKeys.path)",
    ),
    Rule(
        at="spec.gateway",
        field="tls",
        message="exactly one of secret and path must be set",
        holds=_one_place_of_certificate,
        cel="!has(self.tls) || has(self.tls.secret) != has(self.tls.path)",
    ),
    *_of_hosts("httpRoute", "hostnames"),
    *_of_hosts("ingress", "hosts"),
    Rule(
        at="spec.gateway",
        field="responseStore",
        message="only allowed with replicas: 1, as each gateway stores its own responses",
        holds=lambda gateway: gateway.response_store is None or gateway.replicas == 1,
        cel="!has(self.responseStore) || self.replicas == 1",
    ),
    Rule(
        at="spec.gateway",
        field="tenantTokensPerMinute",
        message='needs apiKeys or trustedProxies for tenants other than "*": without them, tenants are not told apart',
        holds=_tenants_are_known,
        cel="!has(self.tenantTokensPerMinute) || self.tenantTokensPerMinute.all(tenant, tenant == '*') || "
        "has(self.apiKeys) || (has(self.trustedProxies) && self.trustedProxies.size() > 0)",
    ),
    Rule(
        at="spec.transfer",
        field="required",
        message="only allowed with a transport other than Auto",
        holds=_required_transport_is_named,
        cel="!self.required || self.transport != 'Auto'",
    ),
    Rule(
        at="spec.rollout",
        field="",
        message="maxSurge and maxUnavailable must not both be 0: no worker could ever be replaced",
        holds=_rollout_can_progress,
        cel="!(string(self.maxSurge) in ['0', '0%']) || !(string(self.maxUnavailable) in ['0', '0%'])",
    ),
    Rule(
        at="spec.scaling",
        field="decode.max",
        message=_EMPTY_DECODE,
        holds=_decode_pool_is_not_empty,
        cel="self.mode == 'Fixed' || !has(self.decode) || self.decode.max >= 1",
    ),
    Rule(
        at="spec.scaling",
        field="decode.min",
        message="can be 0 only if prefill.min is 0, too",
        holds=_prefill_has_decode,
        cel="!has(self.decode) || !has(self.decode.min) || self.decode.min >= 1 || "
        "(has(self.prefill) && (has(self.prefill.min) ? self.prefill.min : self.prefill.max) == 0)",
        arithmetic=_minima,
    ),
    Rule(
        at="spec",
        field="scaling.prefill.min",
        message="can be 0 only if routing.whenPrefillUnavailable is Local: nobody would prefill",
        holds=_prefill_may_be_absent,
        cel="self.routing.whenPrefillUnavailable == 'Local' || "
        "!has(self.scaling.prefill) || !has(self.scaling.prefill.min) || self.scaling.prefill.min >= 1 || "
        "self.scaling.prefill.max == 0",
    ),
    Rule(
        at="spec",
        field="decode.replicas",
        message=_EMPTY_DECODE,
        holds=_fixed_decode_pool_is_not_empty,
        cel="self.scaling.mode != 'Fixed' || !has(self.decode.replicas) || self.decode.replicas >= 1",
    ),
    *(rule for role in roles.BOTH for rule in _of_role(role)),
    *(rule for at in _RESOURCES for rule in _of_resources(at)),
    Rule(
        at="spec",
        field="scaling.gpuBudget",
        message="must be at least the number of GPUs of the smallest pools",
        holds=lambda spec: not pool_sizes.unfit_budget(spec),
        arithmetic=pool_sizes.unfit_budget,
    ),
)
