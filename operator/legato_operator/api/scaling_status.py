"""The schema of `status.scaling`: what the autoscaler decided, with the numbers that it decided from."""

from typing import Any

Schema = dict[str, Any]


def schema() -> Schema:
    """Of `status.scaling`."""
    count: Schema = {"type": "integer", "format": "int32"}
    text: Schema = {"type": "string"}
    term = {
        "type": "object",
        "description": "One way in which the signals ask for workers.",
        "properties": {
            "reason": {**text, "description": "What asks."},
            "workers": {"type": "number", "description": "How many workers it asks for, fractions too."},
            "equation": {**text, "description": "How that follows from the numbers."},
            "numbers": {
                "type": "object",
                "description": "What the equation was calculated from.",
                "additionalProperties": {"type": "number"},
            },
        },
    }
    decision: Schema = {
        "time": {**text, "format": "date-time", "description": "When it was decided."},
        "current": {**count, "description": "Desired number of workers before."},
        "wish": {**count, "description": "Desired number of workers by the autoscaler."},
        "allowed": {**count, "description": "What the limits of all pools make of the wish, where that differs."},
        "needed": {**count, "description": "What the largest term asks for, rounded up."},
        "highest": {**count, "description": "The highest wish within scaling.scaleDownStabilization."},
        "reason": {**text, "description": "Machine-readable reason for the wish."},
        "cappedBy": {**text, "description": "The field that limits the wish."},
        "change": {**text, "description": "What would change the wish."},
        "missing": {"type": "array", "description": "Signals that are not known.", "items": text},
        "unmet": {"type": "array", "description": "Objectives that no number of workers meets.", "items": text},
        "terms": {"type": "array", "description": "All that asks for workers.", "items": term},
    }
    pool: Schema = {"type": "object", "description": "The last decision about a pool.", "properties": decision}
    change = {"type": "object", "properties": {"pool": {**text, "description": "Role of the pool."}, **decision}}
    return {
        "type": "object",
        "description": "What the autoscaler decided, with scaling.mode Managed and Advisory.",
        "properties": {
            "pausedUntil": {**text, "description": "Until when the autoscaler changes nothing."},
            "pools": {
                "type": "object",
                "description": "The last decisions.",
                "properties": {"prefill": pool, "decode": pool},
            },
            "records": {"type": "array", "description": "The last 20 changes, the oldest first.", "items": change},
        },
    }
