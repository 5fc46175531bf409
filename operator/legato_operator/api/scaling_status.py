"""Schema of `status.scaling`: the autoscaler's decisions and their inputs."""

from typing import Any

Schema = dict[str, Any]


def schema() -> Schema:
    """Returns the schema of `status.scaling`."""
    count: Schema = {"type": "integer", "format": "int32"}
    text: Schema = {"type": "string"}
    term = {
        "type": "object",
        "description": "One reason to need workers.",
        "properties": {
            "reason": {**text, "description": "Machine-readable name of the term."},
            "workers": {"type": "number", "description": "Number of workers it asks for, not rounded."},
            "equation": {**text, "description": "Calculation of that number."},
            "numbers": {
                "type": "object",
                "description": "Inputs of the equation.",
                "additionalProperties": {"type": "number"},
            },
        },
    }
    decision: Schema = {
        "time": {**text, "format": "date-time", "description": "Time of the decision."},
        "current": {**count, "description": "Desired number of workers before the decision."},
        "wish": {**count, "description": "Number of workers that the autoscaler wants."},
        "allowed": {**count, "description": "That number within the limits of all pools, if it differs."},
        "needed": {**count, "description": "The largest term, rounded up."},
        "highest": {**count, "description": "Highest wanted number within scaling.scaleDownStabilization."},
        "reason": {**text, "description": "Machine-readable reason of the decision."},
        "cappedBy": {**text, "description": "Field that limits the wanted number."},
        "change": {**text, "description": "Change of load that would change the decision."},
        "missing": {"type": "array", "description": "Signals without a known value.", "items": text},
        "unmet": {"type": "array", "description": "Objectives that more workers cannot meet.", "items": text},
        "terms": {"type": "array", "description": "All terms of the decision.", "items": term},
    }
    pool: Schema = {"type": "object", "description": "The last decision about a pool.", "properties": decision}
    change = {"type": "object", "properties": {"pool": {**text, "description": "Role of the pool."}, **decision}}
    return {
        "type": "object",
        "description": "Decisions of the autoscaler, with scaling.mode Managed and Advisory.",
        "properties": {
            "pausedUntil": {**text, "description": "Time until which the autoscaler is paused."},
            "pools": {
                "type": "object",
                "description": "Last decision of each pool.",
                "properties": {"prefill": pool, "decode": pool},
            },
            "records": {"type": "array", "description": "The last 20 changes, the oldest first.", "items": change},
        },
    }
