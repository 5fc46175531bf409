"""The CustomResourceDefinitions, made from the types of `resources`: `crds/` holds what this module writes.

Pydantic's JSON schema is nearly what Kubernetes calls a structural schema; the differences are bridged here. Rules
over several fields are CEL; each has its twin in `combinations`, for manifests that no API server has seen.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from legato_operator.api import quantities
from legato_operator.api.resources import InferenceService, WorkerPool
from legato_protocol import durations, names, sizes

Schema = dict[str, Any]
Rule = tuple[str, str]  # (CEL, message)

CATEGORIES = ["legato"]
_DROPPED = {"title", "additionalProperties", "propertyNames", "$defs"}

# Objects that the API server fills in. `scaling.prefill` and `.decode` stay out: whether they were given decides
# whether they contradict `mode: Fixed`, and `min` follows from `max`.
_NOT_FILLED_IN = {"spec.scaling.prefill", "spec.scaling.decode"}

_DURATION: Rule = ("duration(self) >= duration('1ms') && duration(self) <= duration('168h')", "1ms to 168h")
_SIZE: Rule = (
    "quantity(string(self)).isGreaterThan(quantity('0')) && quantity(string(self)).compareTo(quantity('1Pi')) <= 0",
    "above 0, at most 1Pi",
)
_RULES: Mapping[str, tuple[Rule, ...]] = {
    "spec.drain.deadline": (_DURATION,),
    "spec.gateway.defaultDeadline": (_DURATION,),
    "spec.rollout.progressDeadline": (_DURATION,),
    "spec.slo.ttft": (_DURATION,),
    "spec.slo.tpot": (_DURATION,),
    "spec.engine.kvCacheMemory": (_SIZE,),
    "": (("size(self.metadata.name) <= 40", "metadata.name must be at most 40 characters: pods are named after it"),),
    "spec": (
        (
            "self.scaling.mode != 'Fixed' || has(self.prefill.replicas) && has(self.decode.replicas)",
            "prefill.replicas and decode.replicas are required with scaling.mode Fixed",
        ),
        (
            "self.scaling.mode == 'Fixed' || !has(self.prefill.replicas) && !has(self.decode.replicas)",
            "prefill.replicas and decode.replicas are only for scaling.mode Fixed; others use scaling.prefill.min and "
            "scaling.decode.min",
        ),
        (
            "self.scaling.mode != 'Fixed' || !has(self.decode.replicas) || self.decode.replicas >= 1",
            "decode.replicas must be at least 1: without decode workers nothing can be served",
        ),
    ),
    "spec.model.source": (
        (
            "[has(self.builtin), has(self.huggingFace), has(self.pvc), has(self.path), has(self.image)]"
            ".filter(given, given).size() == 1",
            "give exactly one of builtin, huggingFace, pvc, path or image",
        ),
    ),
    "spec.engine": (("self.chunkTokens >= self.blockSize", "chunkTokens must be at least blockSize"),),
    "spec.transfer": (
        ("!self.required || self.transport != 'Auto'", "required needs a transport other than Auto to require"),
    ),
    "spec.scaling": (
        (
            "self.mode != 'Fixed' || !has(self.prefill) && !has(self.decode)",
            "bounds of prefill and decode mean nothing with mode Fixed; use prefill.replicas and decode.replicas",
        ),
        (
            "!has(self.decode) || self.decode.max >= 1",
            "decode.max must be at least 1: without decode workers nothing can be served",
        ),
    ),
    "spec.scaling.prefill": (("!has(self.min) || self.min <= self.max", "min must not be above max"),),
    "spec.scaling.decode": (("!has(self.min) || self.min <= self.max", "min must not be above max"),),
    "spec.rollout": (
        (
            "self.maxSurge > 0 || self.maxUnavailable > 0",
            "maxSurge and maxUnavailable cannot both be 0: no worker could ever be replaced",
        ),
    ),
}
_POOL_RULES: Mapping[str, tuple[Rule, ...]] = {
    "spec.service": (("self == oldSelf", "a pool cannot be given to another service"),),
    "spec.role": (("self == oldSelf", "a pool cannot change its role"),),
}

_CONDITIONS: Schema = {
    "type": "array",
    "description": "Observations of the current state, with machine-readable reasons and human-readable messages.",
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": {
        "type": "object",
        "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": {"type": "string", "description": "Type of the condition."},
            "status": {
                "type": "string",
                "enum": ["True", "False", "Unknown"],
                "description": "Status of the condition.",
            },
            "reason": {"type": "string", "description": "Machine-readable reason for the status."},
            "message": {"type": "string", "description": "Human-readable details."},
            "observedGeneration": {
                "type": "integer",
                "format": "int64",
                "description": "Generation of the spec that the condition was set for.",
            },
            "lastTransitionTime": {
                "type": "string",
                "format": "date-time",
                "description": "When the status last changed.",
            },
        },
    },
}
_GENERATION: Schema = {
    "type": "integer",
    "format": "int64",
    "description": "Generation of the spec that this status describes.",
}


def inference_service() -> Schema:
    """The CRD of InferenceService."""
    count = {"type": "integer", "format": "int32"}
    pool = {
        "type": "object",
        "description": "State of one pool.",
        "properties": {
            "replicas": {**count, "description": "Workers that exist, including those that are being removed."},
            "ready": {**count, "description": "Workers that are ready."},
            "desired": {**count, "description": "Desired number of workers."},
            "revision": {"type": "string", "description": "Pod revision of the current spec."},
            "failedRevision": {"type": "string", "description": "That revision, if its workers cannot start."},
            "failureReason": {"type": "string", "description": "Machine-readable reason why they cannot start."},
            "failure": {"type": "string", "description": "Human-readable details of why they cannot start."},
        },
    }
    status = {
        "type": "object",
        "description": "Observed state of the service.",
        "properties": {
            "observedGeneration": _GENERATION,
            "conditions": _CONDITIONS,
            "pools": {
                "type": "object",
                "description": "State of the pools.",
                "properties": {"prefill": pool, "decode": pool},
            },
            "model": {"type": "string", "description": "Model name that clients put into requests."},
            "url": {"type": "string", "description": "URL of the gateway inside the cluster."},
        },
    }
    columns = [
        _column("Ready", "string", ".status.conditions[?(@.type=='Ready')].status"),
        _column("Model", "string", ".status.model"),
        _column("Prefill", "integer", ".status.pools.prefill.ready"),
        _column("Decode", "integer", ".status.pools.decode.ready"),
        _column("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
        _column("URL", "string", ".status.url", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    description = "Serves a language model with prefill and decode in separate pools."
    schema = _resource(InferenceService, description, status, _RULES)
    return _definition(names.INFERENCE_SERVICE, "inferenceservices", ["lisvc"], schema, columns, {"status": {}})


def worker_pool() -> Schema:
    """The CRD of WorkerPool."""
    count = {"type": "integer", "format": "int32"}
    status = {
        "type": "object",
        "description": "Observed state of the pool.",
        "properties": {
            "observedGeneration": _GENERATION,
            "replicas": {**count, "description": "Workers that exist and are not being removed."},
            "readyReplicas": {**count, "description": "Workers that are ready."},
            "selector": {
                "type": "string",
                "description": "Label selector of the pool's workers; draining workers do not match it.",
            },
            "conditions": _CONDITIONS,
        },
    }
    columns = [
        _column("Service", "string", ".spec.service"),
        _column("Role", "string", ".spec.role"),
        _column("Desired", "integer", ".spec.replicas"),
        _column("Workers", "integer", ".status.replicas"),
        _column("Ready", "integer", ".status.readyReplicas"),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    schema = _resource(
        WorkerPool, "The workers of one role of a service; the object that is scaled.", status, _POOL_RULES
    )
    subresources = {"status": {}, "scale": scale}
    return _definition(names.WORKER_POOL, "workerpools", ["lwp"], schema, columns, subresources)


def _definition(
    kind: str, plural: str, short: list[str], schema: Schema, columns: list[Schema], subresources: Schema
) -> Schema:
    group, version = names.API_VERSION.split("/")
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": subresources,
        "additionalPrinterColumns": columns,
    }
    spelled = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {**spelled, "shortNames": short, "categories": CATEGORIES},
            "versions": [served],
        },
    }


def _column(name: str, kind: str, path: str, priority: int = 0) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": priority} if priority else column


def _resource(
    model: type[BaseModel], description: str, status: Schema, rules: Mapping[str, tuple[Rule, ...]]
) -> Schema:
    whole = model.model_json_schema(by_alias=True)
    spec = _Structural(whole["$defs"], rules).of(whole["properties"]["spec"], "spec")
    schema: Schema = {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**spec, "description": "Desired state."},
            "status": status,
        },
    }
    return _with_rules(schema, rules.get("", ()))


class _Structural:
    """Turns one model's JSON schema into a structural one: no references, no alternatives, defaults in place."""

    def __init__(self, definitions: Mapping[str, Schema], rules: Mapping[str, tuple[Rule, ...]]) -> None:
        self._definitions = definitions
        self._rules = rules

    def of(self, node: Schema, path: str) -> Schema:
        """The structural schema of the field at `path`."""
        merged = self._resolved(node)
        kept = {key: value for key, value in merged.items() if key not in _DROPPED}
        if "properties" in merged:
            kept["properties"] = {key: self.of(child, f"{path}.{key}") for key, child in merged["properties"].items()}
        elif isinstance(merged.get("additionalProperties"), dict):
            kept["additionalProperties"] = self.of(merged["additionalProperties"], f"{path}.*")
        elif merged.get("type") == "object":
            kept["x-kubernetes-preserve-unknown-fields"] = True
        if "const" in kept:
            kept["enum"] = [kept.pop("const")]
        if kept.get("type") == "integer":
            kept["format"] = "int64"
        self._set_default(kept, merged, path)
        return _with_rules(kept, self._rules.get(path, ()))

    def _resolved(self, node: Schema) -> Schema:
        """A node with its reference, or the one alternative that is not null, in its place."""
        chosen: Schema = next((child for child in node.get("anyOf", ()) if child.get("type") != "null"), {})
        outer = {key: value for key, value in node.items() if key not in {"anyOf", "$ref"}}
        inner = self._definitions[node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else chosen
        return {**(self._resolved(inner) if inner else {}), **outer}

    def _set_default(self, kept: Schema, merged: Schema, path: str) -> None:
        default = kept.pop("default", None)
        if "properties" in kept:
            # An object that may be left out is filled in, spelled out since rules are checked on it as it stands here.
            if default is not None and path not in _NOT_FILLED_IN:
                children: dict[str, Schema] = kept["properties"]
                kept["default"] = {key: child["default"] for key, child in children.items() if "default" in child}
        elif default not in (None, "", {}) and not (path.endswith(".min") and path.startswith("spec.scaling")):
            kept["default"] = _spelled(default, kept)


def _spelled(default: Any, schema: Schema) -> Any:
    """A default as a manifest spells it."""
    if schema.get("pattern") == quantities.DURATION_SCHEMA["pattern"]:
        return durations.text(default)
    if schema.get("pattern") == quantities.MEMORY_SCHEMA["pattern"]:
        return sizes.text(default)
    return default


def _with_rules(schema: Schema, rules: tuple[Rule, ...]) -> Schema:
    if not rules:
        return schema
    return {**schema, "x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}


def files() -> dict[str, str]:
    """The content of `crds/`, by file name."""
    return {
        f"{definition['spec']['names']['plural']}.yaml": yaml.safe_dump(definition, sort_keys=False, width=120)
        for definition in (inference_service(), worker_pool())
    }


if __name__ == "__main__":
    for name, content in files().items():
        (Path(sys.argv[1]) / name).write_text(content)
