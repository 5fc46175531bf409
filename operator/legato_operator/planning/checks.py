"""Checks for valid settings that this cluster or machine cannot provide. Each check yields (path, message)."""

from collections.abc import Iterator, Sequence

from legato_operator.api import conditions, pod_template, pool_sizes, quantities, roles, rules
from legato_operator.api.quantities import GPU
from legato_operator.api.resources import Engine, Spec
from legato_operator.api.rules import devices
from legato_operator.api.rules.unavailable import AS_PROCESSES, EVERYWHERE, IDLE_AS_PROCESSES, IN_PODS
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.pods import overlay
from legato_operator.observing.observed import Refusal
from legato_protocol.model_files.degrees import DEGREES

Problem = tuple[str, str]


def refusal(spec: Spec, generation: int, placement: PodPlacement) -> Refusal | None:
    """Returns the reason why a valid spec of this generation cannot be reconciled, or None."""
    if problems := unavailable(spec, in_containers=placement.containers is not None):
        return Refusal(generation, conditions.NOT_AVAILABLE, text(problems))
    if problems := contradictions(spec, placement.gpu_resources, placement.machine_gpus):
        return Refusal(generation, conditions.INVALID, text(problems))
    return None


def text(problems: Sequence[Problem]) -> str:
    """Formats problems for a condition's message."""
    return "; ".join(f"{path}: {message}" if path else message for path, message in problems)


def unavailable(spec: Spec, in_containers: bool = False) -> list[Problem]:
    """Returns the problems of a valid spec that pods, as containers or as processes of one machine, cannot fulfil."""
    table, check = (IN_PODS, _additions) if in_containers else (AS_PROCESSES, _adapters)
    return [*rules.problems(spec, (*EVERYWHERE, *table)), *check(spec)]


def without_effect(spec: Spec, has_gpus: bool) -> list[Problem]:
    """Returns the settings of a spec that have no effect, and do no harm, if pods are processes of one machine."""
    idle = rules.problems(spec, IDLE_AS_PROCESSES)
    return idle if has_gpus else [*idle, *_gpus(spec)]


def contradictions(spec: Spec, gpu_resources: Sequence[str], machine_gpus: int | None) -> list[Problem]:
    """Returns contradictions that `rules` cannot find: the operator's settings name the resources that are GPUs, and
    one machine has a number of them; None in a cluster, whose scheduler finds nodes that have enough."""
    unfit = pool_sizes.unfit_budget(spec, gpu_resources)
    problems = [("spec.scaling.gpuBudget", f"the smallest pools need more GPUs: {unfit}")] if unfit else []
    if machine_gpus is None:
        return [*problems, *_contradicting_devices(spec, gpu_resources)]
    if machine_gpus:
        return [*problems, *_contradicting_devices(spec, gpu_resources), *_beyond_machine(spec, machine_gpus)]
    if spec.engine.runner == "Model" and spec.engine.dtype == "Float16":
        problems.append(("spec.engine.dtype", "Float16 needs GPUs; this machine has none"))
    return problems


def uncounted(spec: Spec, gpu_resources: Sequence[str] = (GPU,)) -> Iterator[tuple[str, str]]:
    """Yields (path, name) of each requested accelerator that is not in `gpu_resources`, if its workers would therefore
    compute on CPUs."""
    for role in roles.with_pool(spec):
        if spec.engine.runner == "Model" and not roles.gpus(spec, role, gpu_resources):
            yield from ((f"spec.{role}.resources", name) for name in _accelerators(spec, role))


def _accelerators(spec: Spec, role: str) -> list[str]:
    resources = roles.pool(spec, role).resources
    return quantities.accelerators({**resources.limits, **resources.requests})


def _contradicting_devices(spec: Spec, gpu_resources: Sequence[str]) -> Iterator[Problem]:
    """Yields contradictions about devices, where pods that request GPUs get them and others compute on CPUs."""
    if spec.engine.runner == "Model":
        yield from _uncomputable(spec, gpu_resources)
    if spec.transfer.rdma is not None and spec.transfer.rdma.resource in gpu_resources:
        yield "spec.transfer.rdma.resource", devices.NOT_FOR_RDMA


def _uncomputable(spec: Spec, gpu_resources: Sequence[str]) -> Iterator[Problem]:
    with_gpus = [role for role in roles.with_pool(spec) if roles.gpus(spec, role, gpu_resources)]
    without = [role for role in roles.with_pool(spec) if role not in with_gpus]
    names = ", ".join(gpu_resources)
    for path, name in uncounted(spec, gpu_resources):
        text = (
            f"is not one of the operator's GPU resources ({names}; see --gpu-resource): workers would compute on CPUs"
        )
        yield path, f"{name} {text}"
    if with_gpus and without:
        text = f"must request GPUs ({names}), as {with_gpus[0]} does: {devices.NO_HAND_OFF}"
        yield f"spec.{without[0]}.resources", text
    elif with_gpus:
        yield from _unfit_for_gpus(spec.engine, names)
    elif spec.engine.dtype == "Float16":
        yield "spec.engine.dtype", f"Float16 needs workers that request GPUs ({names})"
    for role in with_gpus:
        count, ranks = roles.gpus(spec, role, gpu_resources), roles.ranks(spec, role)
        if count != ranks:
            text = f"request {count} GPUs, but parallelism.tensor is {ranks}: each rank computes on one GPU"
            yield f"spec.{role}.resources", text


def _beyond_machine(spec: Spec, gpus: int) -> Iterator[Problem]:
    """Yields degrees with more ranks than this machine has GPUs: ranks of one worker cannot share a GPU."""
    for role in roles.with_pool(spec):
        ranks = roles.ranks(spec, role)
        if spec.engine.runner == "Model" and ranks > gpus and roles.gpus(spec, role):
            fit = ", ".join(str(degree) for degree in DEGREES if degree <= gpus)
            text = f"{ranks} ranks need a GPU each, but this machine has {gpus}; degrees that fit: {fit}"
            yield f"spec.{role}.parallelism.tensor", text


def _unfit_for_gpus(engine: Engine, names: str) -> Iterator[Problem]:
    if engine.dtype == "Float32":
        yield "spec.engine.dtype", devices.NO_FLOAT32
    elif engine.dtype == "Auto" and engine.kv_cache_dtype == "Float32":
        yield "spec.engine.kvCacheDtype", devices.NO_KV_IN_FLOAT32
    if engine.block_size not in ("Auto", *devices.BLOCK_SIZES):
        allowed = ", ".join(map(str, devices.BLOCK_SIZES))
        yield "spec.engine.blockSize", f"must be one of {allowed} for workers that request GPUs ({names})"


def _adapters(spec: Spec) -> Iterator[Problem]:
    """Yields adapters and volumes that are not on this machine."""
    for number, adapter in enumerate(spec.model.adapters):
        here, hub = f"spec.model.adapters.{number}.source", adapter.source.hugging_face
        if hub is not None and hub.token_secret is not None:
            yield f"{here}.huggingFace.tokenSecret", "only available on Kubernetes; set the variable HF_TOKEN"
        if hub is None and adapter.source.path is None:
            yield here, "only available on Kubernetes; use path or huggingFace"
    for number, volume in enumerate(spec.model.adapter_volumes):
        if volume.path is None:
            yield f"spec.model.adapterVolumes.{number}.claim", "only available on Kubernetes; use path"


def _gpus(spec: Spec) -> Iterator[Problem]:
    for role in roles.with_pool(spec):
        for name in _accelerators(spec, role):
            text = f"{name} has no effect here: no GPU was found, so workers compute on the CPU"
            yield f"spec.{role}.resources", text


def _additions(spec: Spec) -> Iterator[Problem]:
    for part, template, container in (
        ("prefill", spec.prefill.template, pod_template.WORKER),
        ("decode", spec.decode.template, pod_template.WORKER),
        ("gateway", spec.gateway.template, pod_template.GATEWAY),
    ):
        for path, message in overlay.problems(template, container):
            yield f"spec.{part}.template.{path}", message
