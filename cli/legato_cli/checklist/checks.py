"""Checks of the deployment checklist: each reads a manifest and returns a state and the names concerned. Pure.

The chart's values and the cluster are not in a manifest: a person has to check them.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import reduce
from typing import Any

from legato_operator.api import references, roles
from legato_operator.api.resources import Spec
from legato_operator.planning import checks


class Tick(Enum):
    """An item's state."""

    DONE = "done"
    MISSING = "missing"
    UNCHECKED = "not checked"
    UNNEEDED = "not needed"


Finding = tuple[Tick, str]  # with the names concerned
Check = Callable[[Spec], Finding]


def by_hand(spec: Spec) -> Finding:
    """Leaves the item to a person, for any manifest."""
    return Tick.UNCHECKED, ""


def given(path: str) -> Check:
    """Returns a check that a manifest names this field, even with its default."""
    *parts, field = path.split(".")
    return lambda spec: _done_if(field in reduce(getattr, parts, spec).model_fields_set)


def set_to_something(path: str) -> Check:
    """Returns a check that this field is neither empty nor absent."""
    return lambda spec: _done_if(reduce(getattr, path.split("."), spec))


def valid(spec: Spec) -> Finding:
    return _lacking(path for path, _ in checks.unavailable(spec, in_containers=True))


def memory_limits(spec: Spec) -> Finding:
    limits = {f"{role}.resources": roles.pool(spec, role).resources.limits for role in roles.with_pool(spec)}
    limits["gateway.resources"] = spec.gateway.resources.limits
    return _lacking(part for part, amounts in limits.items() if "memory" not in amounts)


def cpu_requests(spec: Spec) -> Finding:
    pools = {f"{role}.resources": roles.pool(spec, role).resources for role in roles.with_pool(spec)}
    return _lacking(part for part, resources in pools.items() if "cpu" not in resources.requests)


def bounds(spec: Spec) -> Finding:
    return _done_if(spec.scaling.mode == "Fixed" or {"prefill", "decode"} & spec.scaling.model_fields_set)


def gpu_resources(spec: Spec) -> Finding:
    if unknown := {name for _, name in checks.uncounted(spec)}:
        return Tick.UNCHECKED, ", ".join(sorted(unknown))
    return (Tick.DONE if _has_gpus(spec) else Tick.UNNEEDED), ""


def gpu_budget(spec: Spec) -> Finding:
    return _done_if(spec.scaling.gpu_budget) if _has_gpus(spec) else (Tick.UNNEEDED, "")


def gpu_nodes(spec: Spec) -> Finding:
    needed = _has_gpus(spec) or spec.transfer.rdma or any(checks.uncounted(spec))
    return (Tick.UNCHECKED if needed else Tick.UNNEEDED), ""


def storage(spec: Spec) -> Finding:
    source = spec.model.source
    if source.path:
        return Tick.MISSING, "model.source.path"
    if source.hugging_face is None or source.hugging_face.node_cache:
        return Tick.DONE, ""
    templates = {role: roles.pool(spec, role).template for role in roles.with_pool(spec)} | {
        "gateway": spec.gateway.template
    }
    return _lacking(f"{part}.template" for part, template in templates.items() if not _has_cache(template))


def hub_token(spec: Spec) -> Finding:
    speculation = spec.engine.speculation
    draft = speculation.model.hugging_face if speculation is not None and speculation.model is not None else None
    adapters = [adapter.source.hugging_face for adapter in spec.model.adapters]
    repositories = [spec.model.source.hugging_face, draft, *adapters]
    hubs = [hub for hub in repositories if hub]
    open_to_all = [hub.repo for hub in hubs if not hub.token_secret]
    if not hubs:
        return Tick.UNNEEDED, ""
    return (Tick.UNCHECKED if open_to_all else Tick.DONE), ", ".join(open_to_all)


def references_exist(spec: Spec) -> Finding:
    names = sorted({f"{each.kind} {each.name}" for each in references.of(spec)})
    return (Tick.UNCHECKED if names else Tick.UNNEEDED), ", ".join(names)


def spare_gateway(spec: Spec) -> Finding:
    return _done_if(spec.gateway.replicas > 1)


def spare_decode(spec: Spec) -> Finding:
    return _done_if(roles.bounds(spec, roles.DECODE).min > 1)


def spare_prefill(spec: Spec) -> Finding:
    if not spec.disaggregated:
        return Tick.UNNEEDED, ""
    return _done_if(roles.bounds(spec, roles.PREFILL).min > 1 or spec.routing.when_prefill_unavailable == "Local")


def api_keys(spec: Spec) -> Finding:
    return _done_if(spec.gateway.api_keys or spec.gateway.trusted_proxies)


def client_tls(spec: Spec) -> Finding:
    gateway = spec.gateway
    if gateway.tls or (gateway.ingress and gateway.ingress.tls_secret):
        return Tick.DONE, ""
    return (Tick.UNCHECKED, "gateway.httpRoute") if gateway.http_route else (Tick.MISSING, "")


def route(spec: Spec) -> Finding:
    return (Tick.DONE if spec.gateway.http_route or spec.gateway.ingress else Tick.UNCHECKED), ""


def origins(spec: Spec) -> Finding:
    if not spec.gateway.allowed_origins:
        return Tick.UNNEEDED, ""
    return _done_if("*" not in spec.gateway.allowed_origins or spec.gateway.api_keys)


def internal_tls(spec: Spec) -> Finding:
    tls = spec.internal_tls
    return (Tick.MISSING, f"mode is {tls.mode}") if tls and tls.mode != "Strict" else _done_if(tls)


def access_log(spec: Spec) -> Finding:
    return _done_if(spec.gateway.access_log != "Off")


def traces(spec: Spec) -> Finding:
    return (Tick.DONE if spec.tracing.endpoint else Tick.UNCHECKED), ""


def images(spec: Spec) -> Finding:
    named = {"engine.image": spec.engine.image, "gateway.image": spec.gateway.image}
    moving = [field for field, image in named.items() if image and "@sha256:" not in image]
    return (Tick.MISSING if moving else Tick.DONE if all(named.values()) else Tick.UNCHECKED), ", ".join(moving)


def _done_if(done: object) -> Finding:
    return (Tick.DONE if done else Tick.MISSING), ""


def _lacking(names: Iterable[str]) -> Finding:
    """Returns a finding that is missing if there are any names."""
    missing = list(names)
    return (Tick.MISSING if missing else Tick.DONE), ", ".join(missing)


def _has_gpus(spec: Spec) -> bool:
    return any(roles.gpus(spec, role) for role in roles.with_pool(spec))


def _has_cache(template: Mapping[str, Any]) -> bool:
    spec = template.get("spec")
    volumes = spec.get("volumes") if isinstance(spec, Mapping) else None
    listed = volumes if isinstance(volumes, list) else ()  # templates are not validated earlier: see "Manifest"
    return any(isinstance(volume, Mapping) and volume.get("name") == "cache" for volume in listed)
