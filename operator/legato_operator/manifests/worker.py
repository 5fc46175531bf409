"""A worker's pod. Its template has no name in it, so that the template's hash is the pod revision."""

import math
from typing import Any

from legato_operator import limits, quantities
from legato_operator.manifests import common
from legato_operator.placement import Placement
from legato_operator.resources import InferenceService, Resources
from legato_protocol import names


def template(service: InferenceService, pool: str, placement: Placement) -> dict[str, Any]:
    """The pod's spec, the same for all workers of a pool."""
    container = {
        "name": "worker",
        "command": [
            *placement.program,
            "worker",
            *_identity(service, pool),
            *_engine(service),
            *_process(service, pool, placement),
        ],
        "env": [
            common.token_variable(service),
            common.field_variable("LEGATO_POD_NAME", "metadata.name"),
            common.field_variable("LEGATO_POD_REVISION", f"metadata.labels['{names.LABEL_POD_REVISION}']"),
        ],
        "resources": _pool(service, pool).model_dump(),
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "health"}},
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": "health"}},
    }
    return {"containers": [container], "terminationGracePeriodSeconds": common.grace_period(service)}


def pod(service: InferenceService, pool: str, name: str, template: dict[str, Any]) -> dict[str, Any]:
    """One worker of a pool."""
    metadata = common.metadata(service, name, pool, common.revision_of(template))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template}


def draining(service: InferenceService, name: str, uid: str, since: float) -> dict[str, Any]:
    """The mark of a worker that was chosen to leave. Applied by a manager of its own, beside the pod."""
    metadata = {
        "name": name,
        "namespace": service.metadata.namespace,
        "uid": uid,
        "annotations": {common.ANNOTATION_DRAINING: repr(since)},
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def _pool(service: InferenceService, pool: str) -> Resources:
    return service.spec.prefill.resources if pool == "prefill" else service.spec.decode.resources


def _identity(service: InferenceService, pool: str) -> list[str]:
    role = pool if service.spec.disaggregated else "unified"
    return ["--role", role, "--name", "$(LEGATO_POD_NAME)", "--pod-revision", "$(LEGATO_POD_REVISION)"]


def _engine(service: InferenceService) -> list[str]:
    model, engine, transfer = service.spec.model, service.spec.engine, service.spec.transfer
    flags = ["--model", common.model_argument(service), "--max-length", str(model.max_length)]
    flags += ["--block-size", str(engine.block_size), "--kv-cache-memory", str(engine.kv_cache_memory)]
    flags += ["--chunk-tokens", str(engine.chunk_tokens), "--dtype", engine.dtype, "--numerics", engine.numerics]
    flags += ["--transport", transfer.transport]
    return flags if transfer.checksum else [*flags, "--no-checksum"]


def _process(service: InferenceService, pool: str, placement: Placement) -> list[str]:
    flags = ["--host", placement.host, *placement.announce]
    flags += ["--health-port", str(placement.health_port), "--control-port", str(placement.control_port)]
    flags += ["--drain-deadline", quantities.seconds(service.spec.drain.deadline)]
    threads = _threads(service, pool, placement)
    return [*flags, "--threads", str(threads)] if threads else flags


def _threads(service: InferenceService, pool: str, placement: Placement) -> int | None:
    """Compute threads: as many as CPUs were asked for, or a fair share of a machine that all workers share.

    More threads than cores cost far more than they bring: a step ends with its slowest thread. The share follows from
    the replicas at first and not from today's, since another number would mean a rollout of every worker.
    """
    if cpu := _pool(service, pool).requests.get("cpu"):
        return math.ceil(quantities.quantity(cpu))
    if placement.shared_cores is None:
        return None
    workers = sum(limits.wish_at_first(service.spec, each) for each in limits.pools(service.spec))
    return max(1, placement.shared_cores // max(1, workers))
