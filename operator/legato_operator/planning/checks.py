"""What a manifest may ask for and this cluster cannot give. Each check gives (path, message) or nothing."""

import re
from collections.abc import Callable, Iterator, Sequence

from legato_operator.api import conditions, pod_template, pool_sizes, quantities, roles
from legato_operator.api.quantities import GPU
from legato_operator.api.resources import Spec
from legato_operator.manifests import overlay
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observed import Refusal

Problem = tuple[str, str]

# Names of devices that compute, after their domain: of AMD, AWS, Google, Huawei, Intel, NVIDIA and others.
_ACCELERATOR = re.compile(
    "/([^/]*[^/a-z])?([vp]?gpu|[mntx]pu|gcu|mlu|dcu|gaudi|neuron(core|device)?|ascend|i915|xe|mig-[0-9]+g)s?(?![a-z])",
    re.IGNORECASE,
)
_BLOCK_SIZES_OF_GPUS = (16, 32, 64)  # those that the engine's kernels for GPUs are compiled for


def refusal(spec: Spec, generation: int, placement: PodPlacement) -> Refusal | None:
    """Why a valid spec of this generation cannot be reconciled."""
    if problems := unavailable(spec, in_containers=placement.containers is not None):
        return Refusal(generation, conditions.NOT_AVAILABLE, text(problems))
    if problems := contradictions(spec, placement.gpu_resources, placement.has_gpus):
        return Refusal(generation, conditions.INVALID, text(problems))
    return None


def text(problems: Sequence[Problem]) -> str:
    """As a condition tells them."""
    return "; ".join(f"{path}: {message}" if path else message for path, message in problems)


def unavailable(spec: Spec, in_containers: bool = False) -> list[Problem]:
    """Everything in a spec that is valid and cannot be done, where pods are containers or processes of one machine."""
    there = _IN_CONTAINERS if in_containers else _AS_PROCESSES
    return [problem for check in (*_EVERYWHERE, *there) for problem in check(spec)]


def without_effect(spec: Spec, has_gpus: bool) -> list[Problem]:
    """Everything in a spec that does nothing where pods are processes of one machine, and harms nothing there."""
    idle = [problem for check in _IDLE_AS_PROCESSES for problem in check(spec)]
    return idle if has_gpus else [*idle, *_gpus(spec)]


def contradictions(spec: Spec, gpu_resources: Sequence[str], has_gpus: bool) -> list[Problem]:
    """What `rules` cannot know: which resources are GPUs is a setting of the operator, and whether pods get some is
    the cluster's."""
    unfit = pool_sizes.unfit_budget(spec, gpu_resources)
    found = [("spec.scaling.gpuBudget", f"the smallest pools need more GPUs: {unfit}")] if unfit else []
    return [*found, *_contradicting_devices(spec, gpu_resources)] if has_gpus else found


def uncounted(spec: Spec, gpu_resources: Sequence[str] = (GPU,)) -> Iterator[tuple[str, str]]:
    """(path, name) of each accelerator that a pool requests and whose workers would compute on CPUs, since GPUs have
    these other names."""
    for role in roles.of(spec):
        if spec.engine.runner == "Model" and not roles.gpus(spec, role, gpu_resources):
            yield from ((f"spec.{role}.resources", name) for name in _accelerators(spec, role))


def _accelerators(spec: Spec, role: str) -> list[str]:
    resources = roles.pool(spec, role).resources
    given = {**resources.limits, **resources.requests}
    return sorted(name for name in given if _ACCELERATOR.search(name) and quantities.quantity(given[name]))


def _contradicting_devices(spec: Spec, gpu_resources: Sequence[str]) -> list[Problem]:
    """Of what pods compute on where there are GPUs: these if they request some, else CPUs."""
    with_gpus = [role for role in roles.of(spec) if roles.gpus(spec, role, gpu_resources)]
    without = [role for role in roles.of(spec) if role not in with_gpus]
    names = ", ".join(gpu_resources)
    other = f"is not a GPU to the operator ({names}; --gpu-resource names others): workers would compute on CPUs"
    found = [(path, f"{name} {other}") for path, name in uncounted(spec, gpu_resources)]
    if spec.engine.runner == "Model" and with_gpus and without:
        told = f"must request GPUs ({names}), as {with_gpus[0]} does: CPUs and GPUs cannot hand KV over to one another"
        found.append((f"spec.{without[0]}.resources", told))
    elif spec.engine.runner == "Model" and without and spec.engine.dtype == "Float16":
        found.append(("spec.engine.dtype", f"Float16 needs workers that request GPUs ({names})"))
    elif spec.engine.runner == "Model" and with_gpus and spec.engine.block_size not in ("Auto", *_BLOCK_SIZES_OF_GPUS):
        allowed = ", ".join(map(str, _BLOCK_SIZES_OF_GPUS))
        found.append(("spec.engine.blockSize", f"must be one of {allowed} for workers that request GPUs ({names})"))
    if spec.engine.runner == "Model":
        for role in with_gpus:
            if (count := roles.gpus(spec, role, gpu_resources)) > 1:
                text = f"request {count} GPUs, but a worker computes on one; more workers use more"
                found.append((f"spec.{role}.resources", text))
    if spec.transfer.rdma is not None and spec.transfer.rdma.resource in gpu_resources:
        found.append(("spec.transfer.rdma.resource", "must be devices for RDMA, and not GPUs"))
    return found


def _numerics(spec: Spec) -> Iterator[Problem]:
    if spec.engine.numerics == "Invariant":
        yield "spec.engine.numerics", "Invariant is not available yet; use Fast"


def _source(spec: Spec) -> Iterator[Problem]:
    for name, given in (
        ("huggingFace", spec.model.source.hugging_face),
        ("pvc", spec.model.source.pvc),
        ("image", spec.model.source.image),
    ):
        if given is not None:
            yield (
                f"spec.model.source.{name}",
                "only available on Kubernetes; use builtin, or path with a local directory or GGUF file",
            )
    for number, adapter in enumerate(spec.model.adapters):
        here, hub = f"spec.model.adapters.{number}.source", adapter.source.hugging_face
        if hub is not None and hub.token_secret is not None:
            yield f"{here}.huggingFace.tokenSecret", "only available on Kubernetes; set the variable HF_TOKEN"
        if hub is None and adapter.source.path is None:
            yield here, "only available on Kubernetes; use path or huggingFace"
    for number, volume in enumerate(spec.model.adapter_volumes):
        if volume.path is None:
            yield f"spec.model.adapterVolumes.{number}.claim", "only available on Kubernetes; use path"


def _tensor_parallel(spec: Spec) -> Iterator[Problem]:
    for role, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        if pool.parallelism.tensor > 1:
            yield f"spec.{role}.parallelism.tensor", "more than 1 is not available yet"


def _pod_templates(spec: Spec) -> Iterator[Problem]:
    for part, given in (("prefill", spec.prefill), ("decode", spec.decode), ("gateway", spec.gateway)):
        if given.template:
            yield f"spec.{part}.template", "has no effect here: workers and gateways are processes and not pods"


def _gateway_resources(spec: Spec) -> Iterator[Problem]:
    if spec.gateway.resources.given:
        yield "spec.gateway.resources", "has no effect here: the machine's processes share what it has"


def _routes(spec: Spec) -> Iterator[Problem]:
    for field, given in (("httpRoute", spec.gateway.http_route), ("ingress", spec.gateway.ingress)):
        if given is not None:
            yield f"spec.gateway.{field}", "has no effect here: only a cluster has routes to its services"


def _gpus(spec: Spec) -> Iterator[Problem]:
    for role in roles.of(spec):
        for name in _accelerators(spec, role):
            text = f"{name} has no effect here: no GPU was found, so workers compute on the CPU"
            yield f"spec.{role}.resources", text


def _images(spec: Spec) -> Iterator[Problem]:
    for part, image in (("engine", spec.engine.image), ("gateway", spec.gateway.image)):
        if image is not None:
            yield f"spec.{part}.image", "only available on Kubernetes: here workers and gateway are processes"


def _gateway_replicas(spec: Spec) -> Iterator[Problem]:
    if spec.gateway.replicas > 1:
        yield "spec.gateway.replicas", "more than 1 is only available on Kubernetes: here one gateway owns the port"


def _api_keys_secret(spec: Spec) -> Iterator[Problem]:
    if spec.gateway.api_keys and spec.gateway.api_keys.secret:
        yield "spec.gateway.apiKeys.secret", "only available on Kubernetes; use path with a local file"


def _api_keys_path(spec: Spec) -> Iterator[Problem]:
    if spec.gateway.api_keys and spec.gateway.api_keys.path:
        yield "spec.gateway.apiKeys.path", "only available where the gateway is a local process; use secret"


def _tls_secret(spec: Spec) -> Iterator[Problem]:
    if spec.gateway.tls and spec.gateway.tls.secret:
        yield "spec.gateway.tls.secret", "only available on Kubernetes; use path with a local folder"


def _internal_tls(spec: Spec) -> Iterator[Problem]:
    if spec.internal_tls:
        yield "spec.internalTLS", "only available on Kubernetes: here all connections stay on the machine"


def _tls_path(spec: Spec) -> Iterator[Problem]:
    if spec.gateway.tls and spec.gateway.tls.path:
        yield "spec.gateway.tls.path", "only available where the gateway is a local process; use secret"


def _additions(spec: Spec) -> Iterator[Problem]:
    for part, template, container in (
        ("prefill", spec.prefill.template, pod_template.WORKER),
        ("decode", spec.decode.template, pod_template.WORKER),
        ("gateway", spec.gateway.template, pod_template.GATEWAY),
    ):
        for path, message in overlay.problems(template, container):
            yield f"spec.{part}.template.{path}", message


def _absolute_path(spec: Spec) -> Iterator[Problem]:
    path = spec.model.source.path
    if path is not None and not path.startswith("/"):
        yield "spec.model.source.path", "must be absolute: it is a path of every node"
    for number, adapter in enumerate(spec.model.adapters):
        if adapter.source.path is not None and not adapter.source.path.startswith("/"):
            yield f"spec.model.adapters.{number}.source.path", "must be absolute: it is a path of every node"
    for number, volume in enumerate(spec.model.adapter_volumes):
        if volume.path is not None and not volume.path.startswith("/"):
            yield f"spec.model.adapterVolumes.{number}.path", "must be absolute: it is a path of every node"


def _shared_memory(spec: Spec) -> Iterator[Problem]:
    if spec.transfer.transport == "SharedMemory":
        yield "spec.transfer.transport", "SharedMemory does not work between pods; use Auto, TCP or RDMA"


def _huge_pages(spec: Spec) -> Iterator[Problem]:
    if spec.transfer.rdma is None or spec.transfer.rdma.huge_pages is None:
        return
    for role in roles.of(spec):
        resources = roles.pool(spec, role).resources
        if not {"cpu", "memory"} & (resources.requests.keys() | resources.limits.keys()):
            yield f"spec.{role}.resources", "need cpu or memory: Kubernetes refuses transfer.rdma.hugePages alone"


def _rdma(spec: Spec) -> Iterator[Problem]:
    if spec.transfer.rdma is not None:
        yield "spec.transfer.rdma", "has no effect here: processes use the devices that this machine has"


_Check = Callable[[Spec], Iterator[Problem]]
_EVERYWHERE: tuple[_Check, ...] = (_numerics, _tensor_parallel)
_AS_PROCESSES: tuple[_Check, ...] = (_source, _images, _gateway_replicas, _api_keys_secret, _tls_secret, _internal_tls)
_IN_CONTAINERS: tuple[_Check, ...] = (
    _additions,
    _absolute_path,
    _shared_memory,
    _huge_pages,
    _api_keys_path,
    _tls_path,
)
_IDLE_AS_PROCESSES: tuple[_Check, ...] = (_pod_templates, _gateway_resources, _routes, _rdma)
