"""Schemas of the resources' status in the CRDs: conditions, pools, rollouts, upgrades, routes and scaling."""

from typing import Any

Schema = dict[str, Any]


def service() -> Schema:
    """Returns the schema of an InferenceService's status."""
    pool = _record(
        "State of one pool.",
        {
            "replicas": _count("Workers that exist, including those being removed."),
            "ready": _count("Workers that are ready."),
            "desired": _count("Desired number of workers."),
            "ranks": _count("Ranks that each worker's layers are sharded over."),
            "maxLength": _count("Tokens of the longest sequence that every worker accepts."),
            "maxRunning": _count("Sequences that each worker can run at the same time."),
            "cappedBy": _text("Field that makes `desired` differ from the scaler's request."),
            **_REVISION,
        },
    )
    return _record(
        "Observed state of the service.",
        {
            "observedGeneration": _GENERATION,
            "conditions": _CONDITIONS,
            "pools": _record("State of the pools.", {"prefill": pool, "decode": pool}),
            "gateway": _record("State of the gateway's rollout.", _REVISION),
            "scaling": _scaling(),
            "canary": _record(
                "The canary in progress.",
                {
                    "revision": _text("Pod revisions of the new workers, by pool."),
                    "phase": _text("Last phase that it reached: a reason of the condition Progressing."),
                    "since": _time("Start of the phase, or of its comparison."),
                    "weight": _count("Percentage that replaced the manifest's weight for a comparison of equal loads."),
                    "result": _text("Comparison for which the new revision was promoted."),
                },
            ),
            "upgradeTurn": _record(
                "Present while the service is upgraded to the operator's version, and shortly afterwards.",
                {
                    "since": _time("Start of the upgrade."),
                    "unserved": _flag("True if the service was not ready then: its upgrade delays no other service's."),
                },
            ),
            "routes": _ROUTES,
            "model": _text("Model name that clients use in requests."),
            "url": _text("URL of the gateway inside the cluster."),
        },
    )


def worker_pool() -> Schema:
    """Returns the schema of a WorkerPool's status."""
    return _record(
        "Observed state of the pool.",
        {
            "observedGeneration": _GENERATION,
            "replicas": _count("Workers that exist and are not being removed."),
            "readyReplicas": _count("Workers that are ready."),
            "effectiveReplicas": _count("Desired workers after bounds, ratio and GPU budget."),
            "ready": _text("Ready workers of effectiveReplicas, such as 2/3."),
            "cappedBy": _text("Field that makes effectiveReplicas differ from replicas."),
            "selector": _text("Label selector of the pool's workers; draining workers do not match it."),
            "workers": {
                **_list("UIDs of the pool's pods, terminating ones included. Gateways only trust these.", _TEXT),
                "x-kubernetes-list-type": "set",
            },
            "recommended": _count("Number of workers that the autoscaler wants."),
            "reason": _text("The autoscaler's reason for it."),
            "conditions": _CONDITIONS,
        },
    )


def _scaling() -> Schema:
    """Returns the schema of `status.scaling`: the autoscaler's decisions and their inputs."""
    term = _record(
        "One reason to need workers.",
        {
            "reason": _text("Machine-readable name of the term."),
            "workers": {"type": "number", "description": "Number of workers it asks for, not rounded."},
            "equation": _text("Calculation of that number."),
            "numbers": {
                "type": "object",
                "description": "Inputs of the equation.",
                "additionalProperties": {"type": "number"},
            },
        },
    )
    decision = {
        "time": _time("Time of the decision."),
        "current": _count("Desired number of workers before the decision."),
        "recommended": _count("Number of workers that the autoscaler wants."),
        "allowed": _count("That number within the limits of all pools, if it differs."),
        "needed": _count("The largest term, rounded up."),
        "highest": _count("Highest wanted number within scaling.scaleDownStabilization."),
        "reason": _text("Machine-readable reason of the decision."),
        "cappedBy": _text("Field that limits the wanted number."),
        "change": _text("Change of load that would change the decision."),
        "missing": _list("Signals without a known value.", _TEXT),
        "unmet": _list("Objectives that more workers cannot meet.", _TEXT),
        "terms": _list("All terms of the decision.", term),
    }
    pool = _record("The last decision about a pool.", decision)
    change = {"type": "object", "properties": {"pool": _text("Role of the pool."), **decision}}
    return _record(
        "Decisions of the autoscaler, with scaling.mode Managed and Advisory.",
        {
            "pausedUntil": _text("Time until which the autoscaler is paused."),
            "pools": _record("Last decision of each pool.", {"prefill": pool, "decode": pool}),
            "records": _list("The last 20 changes, the oldest first.", change),
        },
    )


def _text(description: str) -> Schema:
    return {"type": "string", "description": description}


def _time(description: str) -> Schema:
    return {"type": "string", "format": "date-time", "description": description}


def _count(description: str) -> Schema:
    return {"type": "integer", "format": "int32", "description": description}


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description}


def _record(description: str, properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "description": description, "properties": properties}


def _list(description: str, items: Schema) -> Schema:
    return {"type": "array", "description": description, "items": items}


def _by_key(description: str, key: str, required: list[str], properties: dict[str, Schema]) -> Schema:
    """Returns the schema of a list whose items are merged by a key."""
    items = {"type": "object", "required": required, "properties": properties}
    return {
        **_list(description, items),
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": [key],
    }


_TEXT: Schema = {"type": "string"}
_GENERATION: Schema = {
    "type": "integer",
    "format": "int64",
    "description": "Generation of the spec that this status describes.",
}
_CONDITIONS = _by_key(
    "Observations of the current state, with machine-readable reasons and human-readable messages.",
    "type",
    ["type", "status", "reason", "message", "lastTransitionTime"],
    {
        "type": _text("Type of the condition."),
        "status": {**_text("Status of the condition."), "enum": ["True", "False", "Unknown"]},
        "reason": _text("Machine-readable reason for the status."),
        "message": _text("Human-readable details."),
        "observedGeneration": {**_GENERATION, "description": "Generation of the spec that the condition was set for."},
        "lastTransitionTime": _time("Time of the status's last change."),
    },
)
_REVISION = {
    "revision": _text("Pod revision of the current spec."),
    "failedRevision": _text("The current revision, if its pods cannot start or its canary failed."),
    "failureReason": _text("Machine-readable reason of the failure."),
    "failure": _text("Human-readable details of the failure."),
}
_ROUTES = _by_key(
    "Routes from outside the cluster that the service has.",
    "kind",
    ["kind", "name"],
    {
        "kind": _text("HTTPRoute or Ingress."),
        "name": _text("Name of that object."),
        "hosts": _list("Hosts from the manifest.", _TEXT),
        "accepted": _flag("True once its controller has accepted it."),
        "addresses": _list("Host names or IP addresses of the Ingress.", _TEXT),
    },
)
