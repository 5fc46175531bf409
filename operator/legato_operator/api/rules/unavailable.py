"""Rules against features that are not available yet, not in pods, or only in pods, for `planning.checks`.

The API server checks the first two.
"""

from legato_operator.api import roles
from legato_operator.api.resources import Spec
from legato_operator.api.rules.rule import Rule, only_in_pods
from legato_operator.api.spec.model import Model

_LOCAL_SOURCE = "only available on Kubernetes; use builtin, or path with a local directory or GGUF file"
_LOCAL_DRAFT = "only available on Kubernetes; use builtin, huggingFace, or path with a local directory or GGUF file"
_NO_SECRET = "only available on Kubernetes; set the variable HF_TOKEN"
_NO_IMAGE = "only available on Kubernetes: here workers and gateway are processes"
_NO_PODS = "has no effect here: workers and gateways are processes and not pods"
_NO_ROUTES = "has no effect here: only a cluster has routes to its services"
_ABSOLUTE = "must be absolute: it is a path on every node"
_HAS_PREFILL = (  # in CEL, as `Spec.disaggregated`
    "(self.scaling.mode == 'Fixed' ? (has(self.prefill.replicas) && self.prefill.replicas > 0)"
    " : (!has(self.scaling.prefill) || self.scaling.prefill.max > 0))"
)


def pool_exists(role: str) -> str:
    """Returns CEL that is true if the spec has workers of this role."""
    return _HAS_PREFILL if role == roles.PREFILL else "true"


def _is_absolute(path: str | None) -> bool:
    return path is None or path.startswith("/")


def _adapters_are_absolute(model: Model) -> bool:
    paths = [adapter.source.path for adapter in model.adapters] + [volume.path for volume in model.adapter_volumes]
    return all(map(_is_absolute, paths))


def _huge_pages_have_cpu_or_memory(spec: Spec, role: str) -> bool:
    if spec.transfer.rdma is None or spec.transfer.rdma.huge_pages is None or role not in roles.with_pool(spec):
        return True
    resources = roles.pool(spec, role).resources
    return bool({"cpu", "memory"} & (resources.requests.keys() | resources.limits.keys()))


def _all_absolute(field: str, path: str) -> str:
    """Returns CEL that is true if all paths in this list are absolute."""
    return f"(!has(self.{field}) || self.{field}.all(each, !has(each.{path}) || each.{path}.startsWith('/')))"


def _names_cpu_or_memory(role: str) -> str:
    """Returns CEL that is true if workers of this role request CPU or memory."""
    given = [f"self.{role}.resources.{kind}" for kind in ("requests", "limits")]
    return " || ".join(f"(has({each}) && ('cpu' in {each} || 'memory' in {each}))" for each in given)


EVERYWHERE = (
    Rule(
        at="spec.engine",
        field="numerics",
        message="Invariant is not available yet; use Fast",
        holds=lambda engine: engine.numerics != "Invariant",
        cel="self.numerics != 'Invariant'",
    ),
)
IN_PODS = (
    *(
        Rule(
            at=at,
            field="path",
            message=_ABSOLUTE,
            holds=lambda source: _is_absolute(source.path),
            cel="!has(self.path) || self.path.startsWith('/')",
        )
        for at in ("spec.model.source", "spec.engine.speculation.model")
    ),
    Rule(
        at="spec.model",
        field="adapters",
        message="paths of adapters and adapterVolumes must be absolute: they are paths on every node",
        holds=_adapters_are_absolute,
        cel=f"{_all_absolute('adapters', 'source.path')} && {_all_absolute('adapterVolumes', 'path')}",
    ),
    Rule(
        at="spec.transfer",
        field="transport",
        message="SharedMemory does not work between pods; use Auto, TCP or RDMA",
        holds=lambda transfer: transfer.transport != "SharedMemory",
        cel="self.transport != 'SharedMemory'",
    ),
    *(
        Rule(
            at=f"spec.gateway.{part}",
            field="path",
            message="only available if the gateway is a local process; use secret",
            holds=lambda given: given.path is None or given.secret is not None,
            cel="!has(self.path) || has(self.secret)",
        )
        for part in ("apiKeys", "tls")
    ),
    *(
        Rule(
            at="spec",
            field=f"{role}.resources",
            message="need cpu or memory: Kubernetes refuses transfer.rdma.hugePages without them",
            holds=lambda spec, role=role: _huge_pages_have_cpu_or_memory(spec, role),  # type: ignore[misc]
            cel=f"!has(self.transfer.rdma) || !has(self.transfer.rdma.hugePages) || !{pool_exists(role)} || "
            f"{_names_cpu_or_memory(role)}",
        )
        for role in roles.BOTH
    ),
)
AS_PROCESSES = (
    *(only_in_pods(f"spec.model.source.{place}", _LOCAL_SOURCE) for place in ("huggingFace", "pvc", "image")),
    *(only_in_pods(f"spec.engine.speculation.model.{place}", _LOCAL_DRAFT) for place in ("pvc", "image")),
    only_in_pods("spec.engine.speculation.model.huggingFace.tokenSecret", _NO_SECRET),
    *(only_in_pods(f"spec.{part}.image", _NO_IMAGE) for part in ("engine", "gateway")),
    Rule(
        at="spec.gateway",
        field="replicas",
        message="more than 1 is only available on Kubernetes: here one gateway owns the port",
        holds=lambda gateway: gateway.replicas <= 1,
    ),
    only_in_pods("spec.gateway.apiKeys.secret", "only available on Kubernetes; use path with a local file"),
    only_in_pods("spec.gateway.tls.secret", "only available on Kubernetes; use path with a local folder"),
    only_in_pods("spec.internalTLS", "only available on Kubernetes: here all connections stay on the machine"),
)
IDLE_AS_PROCESSES = (
    *(only_in_pods(f"spec.{part}.template", _NO_PODS) for part in ("prefill", "decode", "gateway")),
    only_in_pods("spec.gateway.resources", "has no effect here: the machine's processes share what it has"),
    *(only_in_pods(f"spec.gateway.{route}", _NO_ROUTES) for route in ("httpRoute", "ingress")),
    only_in_pods("spec.transfer.rdma", "has no effect here: processes use the devices that this machine has"),
)
