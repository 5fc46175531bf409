"""Manifests of services of paced workers, which compute nothing and start in a moment."""

import json
from typing import Any

from kube import Object

# A stream of 24 tokens takes two seconds, whatever else the machine does.
STREAMS = {"perStep": 0.08, "perRow": 0, "perContext": 0, "perToken": 0.0001, "perPair": 0}
SLOWER = 3  # times as long is a step by the other profile of every service, slow.json
PAIR = {"mode": "External", "prefill": {"min": 1, "max": 2}, "decode": {"min": 1, "max": 3}}


def manifest(
    name: str,
    step: Object = STREAMS,
    kv_tokens: int = 100_000,
    pod: Object | None = None,
    requests: Object | None = None,
    engine: Object | None = None,
    gateway: Object | None = None,
    **spec: Any,
) -> str:
    """Returns the text of a service and of its workers' profile. By default, every prompt is handed over.

    Args:
        step: coefficients of the profile
        pod: more of the `spec` of all its pods, gateways too
        requests: more of what a worker requests
        engine, gateway: more of these fields
        spec: other fields of the manifest, instead of those here
    """
    profile = {"source": "made up", "step": step, "kvTokens": kv_tokens, "startSeconds": 0.5}
    slow = {**profile, "step": {name: SLOWER * seconds for name, seconds in step.items()}}
    mount = {"name": "worker", "volumeMounts": [{"name": "profile", "mountPath": "/profiles"}]}
    volume = {"name": "profile", "configMap": {"name": f"{name}-profile"}}
    pool = {
        "resources": {"requests": {"cpu": "10m", "memory": "150Mi", **(requests or {})}},
        "template": {"spec": {"containers": [mount], "volumes": [volume], **(pod or {})}},
    }
    fields = {
        "model": {"source": {"builtin": "smollm2-135m-instruct"}, "maxLength": 8192},
        "engine": {"runner": "Paced", "profile": "/profiles/paced.json", **(engine or {})},
        "prefill": pool,
        "decode": pool,
        "gateway": {
            "resources": {"requests": {"cpu": "20m", "memory": "150Mi"}},
            "template": {"spec": pod or {}},
            **(gateway or {}),
        },
        "routing": {"localPrefillBelowTokens": 0},
        "scaling": PAIR,
        "drain": {"deadline": "30s"},
        **spec,
    }
    objects = [
        _object(
            "v1",
            "ConfigMap",
            f"{name}-profile",
            data={"paced.json": json.dumps(profile), "slow.json": json.dumps(slow)},
        ),
        _object("serving.legato.dev/v1alpha1", "InferenceService", name, spec=fields),
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def _object(version: str, kind: str, name: str, **content: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}
