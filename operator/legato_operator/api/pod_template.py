"""CRD schema of the `template` fields, which add to pods. Pure.

The schema only contains the refused fields: the API server knows the rest of a pod. `manifests.pods.overlay` refuses
the same fields in objects that were stored before.
"""

from typing import Any

from legato_protocol import names

Schema = dict[str, Any]

SPEC = ("restartPolicy", "terminationGracePeriodSeconds", "hostname", "subdomain", "activeDeadlineSeconds")
CONTAINER = ("command", "args", "ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
LABELS = (f"{names.API_GROUP}/", names.LABEL_APP)
VARIABLES = "LEGATO_"
WORKER = "worker"
GATEWAY = "gateway"

_OPEN: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_LISTS = ("command", "args")
_NUMBERS = ("terminationGracePeriodSeconds", "activeDeadlineSeconds")


def _rule(rule: str, message: str) -> Schema:
    return {"rule": rule, "message": f"{message} to the operator"}


def _texts(kind: str) -> Schema:
    mine = " || ".join(f"name.startsWith('{label}')" for label in LABELS)
    return {
        "type": "object",
        "description": f"Further {kind} of the pods.",
        "maxProperties": 64,
        "additionalProperties": {"type": "string"},
        "x-kubernetes-validations": [_rule(f"!self.exists(name, {mine})", f"{' and '.join(LABELS)} belong")],
    }


def _container(name: str) -> Schema:
    variable = {**_OPEN, "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 512}}}
    fields: Schema = {
        "name": {"type": "string", "maxLength": 63},
        "env": {"type": "array", "maxItems": 256, "items": variable},
    }
    for field in CONTAINER:
        lists = {"type": "array", "items": {"type": "string"} if field in _LISTS else _OPEN}
        fields[field] = lists if field in (*_LISTS, "ports") else _OPEN
    given = " || ".join(f"has(self.{field})" for field in CONTAINER)
    other = f"self.name != '{name}' || "
    mine = f"{other}!has(self.env) || !self.env.exists(given, given.name.startsWith('{VARIABLES}'))"
    return {
        **_OPEN,
        "required": ["name"],
        "properties": fields,
        "x-kubernetes-validations": [
            _rule(f"{other}!({given})", f"{', '.join(CONTAINER)} of the {name} belong"),
            _rule(mine, f"variables {VARIABLES}* of the {name} belong"),
        ],
    }


def schema(container: str) -> Schema:
    """Returns the schema of the `template` of pods whose own container has this name."""
    named = {"type": "array", "items": {**_OPEN, "required": ["name"], "properties": {"name": {"type": "string"}}}}
    reserved = {
        name: {"type": "integer" if name in _NUMBERS else "string", "description": "Not allowed: the operator sets it."}
        for name in SPEC
    }
    rules = [{**_rule(f"!has(self.{name})", "belongs"), "fieldPath": f".{name}"} for name in SPEC]
    containers = {"type": "array", "maxItems": 16, "items": _container(container)}
    return {
        "type": "object",
        "properties": {
            "metadata": {
                "type": "object",
                "description": "Further labels and annotations of the pods.",
                "properties": {kind: _texts(kind) for kind in ("labels", "annotations")},
            },
            "spec": {
                **_OPEN,
                "description": "Fields of a pod's spec.",
                "properties": {
                    **reserved,
                    "containers": {**containers, "description": f"Additions to the container {container}, or others."},
                    "initContainers": {**named, "description": "Containers that run before the others."},
                    "volumes": {**named, "description": "Further volumes."},
                },
                "x-kubernetes-validations": rules,
            },
        },
    }
