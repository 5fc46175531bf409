"""Generates the CustomResourceDefinitions in `crds/` from the types of `resources`.

Pydantic's JSON schema is nearly a structural schema of Kubernetes; this module bridges the differences. Rules over
several fields come from `rules`, as CEL.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from legato_operator.api import quantities, rules, status_schema
from legato_operator.api.resources import InferenceService, WorkerPool
from legato_operator.api.rules import devices, unavailable
from legato_operator.api.spec.scalars import LONGEST_SERVICE_NAME
from legato_protocol import names
from legato_protocol.settings import durations, sizes

Schema = dict[str, Any]
Rules = Mapping[str, Sequence[Schema]]  # entries of x-kubernetes-validations, by path of the object

CATEGORIES = ["legato"]
_DROPPED = {"title", "additionalProperties", "propertyNames", "$defs"}

# Fields without a default in the CRD. `scaling.prefill` and `.decode` must stay absent unless given: only then do they
# contradict `mode: Fixed`, and `min` follows from `max`. Newer fields stay absent because an older operator reports
# fields that it does not know.
_NOT_FILLED_IN = {
    "spec.scaling.prefill",
    "spec.scaling.decode",
    "spec.prefill.template",
    "spec.decode.template",
    "spec.gateway.template",
    "spec.gateway.resources",
    "spec.gateway.allowedOrigins",
    "spec.gateway.whenLate",
    "spec.gateway.limits",
    "spec.gateway.streams",
    "spec.gateway.reasoningParser",
    "spec.model.source.huggingFace.resources",
    "spec.model.maxLength",
    "spec.model.generationConfig",
    "spec.model.adapters",
    "spec.model.adapterVolumes",
    "spec.model.adaptersInMemory",
    "spec.model.maxAdapterRank",
    "spec.routing.weights.adapter",
    "spec.routing.whenPrefillBusy",
    "spec.routing.kvSharing",
    "spec.routing.onWorkerFailure",
    "spec.engine.maxRunning",
    "spec.engine.speculation",
    "spec.engine.onKernelFailure",
    "spec.engine.quantization",
    "spec.engine.startTimeout",
}

_VALIDATIONS = "x-kubernetes-validations"
_NAMES: list[Schema] = [
    {
        "rule": f"size(self.metadata.name) <= {LONGEST_SERVICE_NAME}",
        "message": f"metadata.name must be at most {LONGEST_SERVICE_NAME} characters: pods are named after it",
    },
    {
        "rule": "self.metadata.name.matches('^[a-z][-a-z0-9]*$')",
        "message": "metadata.name must start with a letter and have no dots: a Service is named after it",
    },
]
# Rules of changes, which only the API server sees.
_SERVICE_CHANGES: dict[str, Sequence[Schema]] = {
    "spec": [
        {
            "rule": "has(self.internalTLS) == has(oldSelf.internalTLS) || "
            "(has(self.internalTLS) ? self.internalTLS.mode : oldSelf.internalTLS.mode) != 'Strict'",
            "message": "Strict must be changed to and from by way of mode Permissive: pods with and without TLS could "
            "not reach each other",
            "fieldPath": ".internalTLS",
        }
    ]
}
_POOL_RULES: Rules = {
    "spec.service": [{"rule": "self == oldSelf", "message": "a pool cannot be given to another service"}],
    "spec.role": [{"rule": "self == oldSelf", "message": "a pool cannot change its role"}],
}


def inference_service() -> Schema:
    """Returns the CRD of InferenceService."""
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
    schema = _resource(InferenceService, description, status_schema.service(), _service_rules())
    return _definition(names.INFERENCE_SERVICE, "inferenceservices", ["lisvc"], schema, columns, {"status": {}})


def worker_pool() -> Schema:
    """Returns the CRD of WorkerPool."""
    columns = [
        _column("Service", "string", ".spec.service"),
        _column("Role", "string", ".spec.role"),
        _column("Desired", "integer", ".spec.replicas"),
        _column("Effective", "integer", ".status.effectiveReplicas"),
        _column("Ready", "string", ".status.ready"),
        _column("Recommended", "integer", ".status.recommended"),
        _column("Why", "string", ".status.reason"),
        _column("Workers", "integer", ".status.replicas", priority=1),
        _column("Limited by", "string", ".status.cappedBy", priority=1),
        _column("Age", "date", ".metadata.creationTimestamp"),
    ]
    scale = {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    description = "The workers of one role of a service; the object that is scaled."
    schema = _resource(WorkerPool, description, status_schema.worker_pool(), _POOL_RULES)
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
    forms = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {**forms, "shortNames": short, "categories": CATEGORIES},
            "versions": [served],
        },
    }


def _column(name: str, kind: str, path: str, priority: int = 0) -> Schema:
    column: Schema = {"name": name, "type": kind, "jsonPath": path}
    return column | {"priority": priority} if priority else column


def _resource(model: type[BaseModel], description: str, status: Schema, validations: Rules) -> Schema:
    whole = model.model_json_schema(by_alias=True)
    spec = _Structural(whole["$defs"], validations).convert(whole["properties"]["spec"], "spec")
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
    return _with_rules(schema, validations.get("", ()))


def _service_rules() -> Rules:
    by_path: dict[str, list[Schema]] = {"": [*_NAMES]}
    for given in (_SERVICE_CHANGES, devices.VALIDATIONS):
        for path, validations in given.items():
            by_path.setdefault(path, []).extend(validations)
    for rule in (*rules.RULES, *unavailable.EVERYWHERE, *unavailable.IN_PODS):
        if rule.cel:
            by_path.setdefault(rule.at, []).append(rule.validation())
    return by_path


class _Structural:
    """Converts a model's JSON schema to a structural one: no references, no alternatives, explicit defaults."""

    def __init__(self, definitions: Mapping[str, Schema], validations: Rules) -> None:
        self._definitions = definitions
        self._validations = validations

    def convert(self, node: Schema, path: str) -> Schema:
        """Returns the structural schema of the field at `path`."""
        merged = self._resolved(node)
        kept = {key: value for key, value in merged.items() if key not in _DROPPED}
        if "properties" in merged:
            kept["properties"] = {
                key: self.convert(child, f"{path}.{key}") for key, child in merged["properties"].items()
            }
        elif isinstance(merged.get("additionalProperties"), dict):
            kept["additionalProperties"] = self.convert(merged["additionalProperties"], f"{path}.*")
        elif "$ref" in merged.get("items", {}):
            kept["items"] = self.convert(merged["items"], f"{path}.*")
        elif merged.get("type") == "object":
            kept["x-kubernetes-preserve-unknown-fields"] = True
        if isinstance(merged.get("items"), dict):
            kept["items"] = self.convert(merged["items"], f"{path}.*")
        if "const" in kept:
            kept["enum"] = [kept.pop("const")]
        if kept.get("type") == "integer":
            kept["format"] = "int64"
        self._set_default(kept, merged, path)
        return _with_rules(kept, self._validations.get(path, ()))

    def _resolved(self, node: Schema) -> Schema:
        """Returns a node with its reference, or its one alternative that is not null, substituted."""
        chosen: Schema = next((child for child in node.get("anyOf", ()) if child.get("type") != "null"), {})
        outer = {key: value for key, value in node.items() if key not in {"anyOf", "$ref"}}
        inner = self._definitions[node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else chosen
        return {**(self._resolved(inner) if inner else {}), **outer}

    def _set_default(self, kept: Schema, merged: Schema, path: str) -> None:
        default = kept.pop("default", None)
        if "properties" in kept:
            # An optional object gets a default that lists its children's defaults, because CEL rules see it unexpanded.
            if default is not None and path not in _NOT_FILLED_IN:
                children: dict[str, Schema] = kept["properties"]
                kept["default"] = {key: child["default"] for key, child in children.items() if "default" in child}
        elif (
            default not in (None, "", {})
            and path not in _NOT_FILLED_IN
            and not (path.endswith(".min") and path.startswith("spec.scaling"))
        ):
            kept["default"] = _manifest_value(default, kept)


def _manifest_value(default: Any, schema: Schema) -> Any:
    """Returns a default in the notation of manifests."""
    if schema.get("pattern") == quantities.DURATION_SCHEMA["pattern"]:
        return durations.text(default)
    if schema.get("pattern") in (quantities.MEMORY_OR_AUTO_SCHEMA["pattern"], quantities.MEMORY_SCHEMA["pattern"]):
        return sizes.text_or_auto(default)
    return default


def _with_rules(schema: Schema, added: Sequence[Schema]) -> Schema:
    every = [*schema.get(_VALIDATIONS, ()), *added]
    return {**schema, _VALIDATIONS: every} if every else schema


def files() -> dict[str, str]:
    """Returns the content of `crds/` by file name."""
    return {
        f"{definition['spec']['names']['plural']}.yaml": yaml.safe_dump(definition, sort_keys=False, width=120)
        for definition in (inference_service(), worker_pool())
    }


if __name__ == "__main__":
    for name, content in files().items():
        (Path(sys.argv[1]) / name).write_text(content)
