"""A worker's pod. The template contains no name, so that its hash is the pod revision."""

import math
from collections.abc import Mapping
from typing import Any

from legato_operator.api import quantities, roles
from legato_operator.api.resources import Engine, InferenceService, Spec
from legato_operator.cluster import Object
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.pods import adapters, container, model, overlay, rdma
from legato_operator.manifests.pods.model import Delivery, Download, Volume
from legato_protocol import names
from legato_protocol.settings import durations

# Environment variables used in a container's arguments.
POD_NAME = "LEGATO_POD_NAME"
POD_IP = "LEGATO_POD_IP"
POD_REVISION = "LEGATO_POD_REVISION"
LEASE_PATIENCE = 2  # multiple of the hang timeout: gateways, which know more, give up a worker before its peers do
STEP_PATIENCE = 8  # multiple of the hang timeout for a step: kernels compile, and memory is touched for the first time


def template(service: InferenceService, pool: str, placement: PodPlacement) -> dict[str, Any]:
    """Returns the pod's metadata and spec, the same for all workers of a pool."""
    delivery = model.delivery(service, placement)
    worker = container.process(
        "worker", placement, _arguments(service, pool, placement, delivery), _env(service, placement)
    )
    worker["resources"] = common.merged_resources(roles.pool(service.spec, pool).resources)
    spec: dict[str, Any] = {"containers": [worker]}
    if placement.containers:
        worker["env"].append(common.field_variable(POD_IP, "status.podIP"))
        tls = service.spec.internal_tls
        ports = {"health": placement.health_port, **container.control_ports(tls, placement)}
        image = service.spec.engine.image or placement.containers.engine_image
        downloads = [*_draft_downloads(service, pool, worker), *adapters.downloads(service, worker["resources"])]
        spec = container.pod_spec(worker, placement.containers, image, ports, delivery, downloads)
        spec = container.with_volumes(spec, _draft_volumes(service, pool, placement))
        adapted = (*adapters.volumes(service, placement), *adapters.list_volume(service, placement))
        spec = container.with_volumes(spec, adapted)
        spec = container.with_secret(spec, container.TOKEN, placement.token_folder, common.token_name(service))
        spec = container.with_internal_tls(spec, tls)
        spec = rdma.with_rdma(spec, service.spec.transfer.rdma)
        if service.spec.transfer.node_memory == "On":
            spec["hostIPC"] = True  # also makes the node's /dev/shm the container's
        spec |= {"serviceAccountName": common.pool_name(service, "worker"), "automountServiceAccountToken": False}
        if common.SPREAD not in roles.pool(service.spec, pool).template.get("spec", {}):
            spec[common.SPREAD] = [common.spread(common.selector(service, role=pool, serving="true"))]
    spec["terminationGracePeriodSeconds"] = common.grace_period(service)
    ours = {"metadata": {"labels": common.role_labels(pool)}, "spec": spec}
    return overlay.merge(ours, roles.pool(service.spec, pool).template) if placement.containers else ours


def pod(service: InferenceService, name: str, template: dict[str, Any], failures: int = 0) -> dict[str, Any]:
    """Returns one worker of a pool; `failures` counts the failures in a row of its predecessors."""
    return common.pod(service, name, template, {common.ANNOTATION_FAILURES: str(failures)} if failures else {})


def draining(service: InferenceService, name: str, uid: str, since: float) -> dict[str, Any]:
    """Returns the annotation of a draining worker and the label that removes it from its pool's selector.

    A separate field manager applies it.
    """
    annotations, labels = {common.ANNOTATION_DRAINING: repr(since)}, {names.LABEL_SERVING: "false"}
    return common.partial_object(service, "Pod", name, uid=uid, annotations=annotations, labels=labels)


def adopted(service: InferenceService, name: str, uid: str, pool: Object) -> dict[str, Any]:
    """Returns the owner reference of a worker whose pool was deleted, to the pool that replaced it.

    A separate field manager applies it.
    """
    return common.owned(common.partial_object(service, "Pod", name, uid=uid), pool)


def serving(service: InferenceService, name: str, uid: str) -> dict[str, Any]:
    """Returns the label of a recalled worker, which replaces `draining`."""
    return common.partial_object(service, "Pod", name, uid=uid, labels={names.LABEL_SERVING: "true"})


def _env(service: InferenceService, placement: PodPlacement) -> list[dict[str, Any]]:
    return [
        common.field_variable(POD_NAME, "metadata.name"),
        common.field_variable(POD_REVISION, f"metadata.labels['{names.LABEL_POD_REVISION}']"),
        *common.tracing_variables(service, placement),
    ]


def _arguments(service: InferenceService, pool: str, placement: PodPlacement, delivery: Delivery) -> list[str]:
    return [
        "worker",
        *_identity(service, pool),
        *_engine(service, delivery),
        *_node_memory(service, placement),
        *adapters.worker_arguments(service, placement),
        *_decoding(service, pool, placement),
        *_hang(service),
        *_process(service, pool, placement),
    ]


def _identity(service: InferenceService, pool: str) -> list[str]:
    role = pool if service.spec.disaggregated else "unified"
    return ["--role", role, "--name", f"$({POD_NAME})", "--pod-revision", f"$({POD_REVISION})"]


def _engine(service: InferenceService, delivery: Delivery) -> list[str]:
    model, engine, transfer = service.spec.model, service.spec.engine, service.spec.transfer
    flags = ["--model", delivery.argument]
    if model.max_length is not None:
        flags += ["--max-length", str(model.max_length)]
    flags += ["--block-size", str(engine.block_size), "--kv-cache-memory"]
    flags += ["Auto"] if engine.kv_cache_memory is None else [str(engine.kv_cache_memory)]
    if engine.host_kv_memory is not None:
        flags += ["--host-kv-memory", str(engine.host_kv_memory)]
    if engine.disk_kv is not None:
        flags += ["--disk-kv-path", engine.disk_kv.path, "--disk-kv-size", str(engine.disk_kv.size)]
    flags += ["--chunk-tokens", str(engine.chunk_tokens), "--dtype", engine.dtype, "--numerics", engine.numerics]
    flags += ["--kv-cache-dtype", engine.kv_cache_dtype, "--transport", transfer.transport]
    if transfer.required and transfer.transport == "RDMA":
        flags.append("--transport-required")
    if engine.max_running is not None:
        flags += ["--max-batch", str(engine.max_running)]
    if (speculation := engine.speculation) is not None and speculation.model is None:
        flags += ["--speculation", speculation.method, "--speculation-tokens", str(speculation.tokens)]
    if engine.quantization != "None":
        flags += ["--quantization", engine.quantization]
    if engine.start_timeout != Engine().start_timeout:
        flags += ["--start-limit", durations.text(engine.start_timeout)]
    if engine.profile is not None:
        flags += ["--runner", engine.runner.lower(), "--profile", engine.profile]
    return flags if transfer.checksum else [*flags, "--no-checksum"]


def _node_memory(service: InferenceService, placement: PodPlacement) -> list[str]:
    """Returns the flag, if it differs from the default: pods share memory only if the manifest asks for it."""
    given = service.spec.transfer.node_memory or ("Off" if placement.containers else None)
    return ["--node-memory", given] if given else []


def _decoding(service: InferenceService, pool: str, placement: PodPlacement) -> list[str]:
    """Returns flags of decode workers only, so that a change does not roll out prefill workers."""
    if pool != roles.DECODE:
        return []
    flags = ["--slo-tpot", durations.text(service.spec.slo.tpot)]
    flags += ["--output-reservation", service.spec.engine.output_reservation]
    speculation, draft = service.spec.engine.speculation, model.draft(service, placement)
    if speculation is None or draft is None:
        return flags
    flags += ["--speculation", speculation.method, "--speculation-tokens", str(speculation.tokens)]
    return [*flags, "--speculation-model", draft.argument]


def _draft_downloads(service: InferenceService, pool: str, worker: Mapping[str, Any]) -> list[Download]:
    return model.draft_downloads(service, worker["resources"]) if pool == roles.DECODE else []


def _draft_volumes(service: InferenceService, pool: str, placement: PodPlacement) -> list[Volume]:
    """Returns the volume of the draft model: only decode workers have one."""
    draft = model.draft(service, placement) if pool == roles.DECODE else None
    if draft is None or draft.volume is None or draft.mount is None:
        return []
    return [Volume(draft.volume, draft.mount)]


def _hang(service: InferenceService) -> list[str]:
    """Returns the flags of a worker's server and peers for hangs; gateways use the same timeout (see `gateway`)."""
    patience = service.spec.engine.hang_timeout
    silence, step, lease = (durations.text(times * patience) for times in (1, STEP_PATIENCE, LEASE_PATIENCE))
    return ["--core-silence", silence, "--step-limit", step, "--lease", lease]


def _process(service: InferenceService, pool: str, placement: PodPlacement) -> list[str]:
    flags = ["--host", placement.host, *placement.transfer, *placement.announce]
    flags += ["--health-port", str(placement.health_port), "--control-port", str(placement.control_port)]
    flags += ["--token-folder", placement.token_folder, *container.internal_tls_flags(service)]
    flags += ["--drain-deadline", durations.text(service.spec.drain.deadline)]
    on_gpu = placement.has_gpus and roles.gpus(service.spec, pool, placement.gpu_resources)
    flags += ["--device", "cuda"] if on_gpu else placement.time_slices
    if service.spec.engine.on_kernel_failure != "Auto":
        flags += ["--on-kernel-failure", service.spec.engine.on_kernel_failure]
    if service.spec.engine.kv_cache_memory is None and not placement.containers:
        gpus = len(placement.shared_gpus)
        flags += ["--memory-share", str(math.ceil(_ranks(service) / gpus) if on_gpu else _workers(service))]
    if (ranks := roles.ranks(service.spec, pool)) > 1:
        flags += ["--tensor", str(ranks)]
    threads = compute_threads(service.spec, pool, placement.shared_cores)
    return [*flags, "--threads", str(threads)] if threads else flags


def compute_threads(spec: Spec, pool: str, shared_cores: int | None) -> int | None:
    """Returns the compute threads of each of a worker's ranks: their part of the requested CPUs, or of a fair share of
    a shared machine.

    More threads than cores are slow, because a step ends with its slowest thread. Pools do not divide cores, because
    their workers take time slices. The share uses the initial replicas: another number would roll out every worker.
    """
    if cpu := roles.pool(spec, pool).resources.requests.get("cpu"):
        cores = math.ceil(quantities.quantity(cpu))
    elif shared_cores is not None:
        cores = shared_cores // max(1, roles.initial_replicas(spec, pool))
    else:
        return None
    return max(1, cores // roles.ranks(spec, pool))


def _workers(service: InferenceService) -> int:
    """Returns the initial number of workers on one machine."""
    return max(1, sum(roles.initial_replicas(service.spec, each) for each in roles.with_pool(service.spec)))


def _ranks(service: InferenceService) -> int:
    """Returns the initial number of ranks on one machine, each of which takes a GPU's memory."""
    spec = service.spec
    return sum(roles.initial_replicas(spec, each) * roles.ranks(spec, each) for each in roles.with_pool(spec))
