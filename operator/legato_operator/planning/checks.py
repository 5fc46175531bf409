"""What a manifest may ask for and this cluster cannot give. Each check gives (path, message) or nothing."""

from collections.abc import Callable, Iterator, Sequence

from legato_operator.api import pool_sizes
from legato_operator.api.resources import Spec
from legato_operator.manifests import overlay

Problem = tuple[str, str]


def unavailable(spec: Spec, in_containers: bool = False) -> list[Problem]:
    """Everything in a spec that is valid and cannot be done, where pods are containers or processes of one machine."""
    there = _IN_CONTAINERS if in_containers else _AS_PROCESSES
    return [problem for check in (*_EVERYWHERE, *there) for problem in check(spec)]


def contradictions(spec: Spec, gpu_resources: Sequence[str]) -> list[Problem]:
    """What `rules` cannot know: which resources are GPUs is a setting of the operator."""
    unfit = pool_sizes.unfit_budget(spec, gpu_resources)
    return [("spec.scaling.gpuBudget", f"the smallest pools need more GPUs: {unfit}")] if unfit else []


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


def _tensor_parallel(spec: Spec) -> Iterator[Problem]:
    for role, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        if pool.parallelism.tensor > 1:
            yield f"spec.{role}.parallelism.tensor", "more than 1 is not available yet"


def _pod_template(spec: Spec) -> Iterator[Problem]:
    for role, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        if pool.template:
            yield f"spec.{role}.template", "only available on Kubernetes: here workers are processes"


def _gateway_replicas(spec: Spec) -> Iterator[Problem]:
    if spec.gateway.replicas > 1:
        yield "spec.gateway.replicas", "more than 1 is only available on Kubernetes: here one gateway owns the port"


def _additions(spec: Spec) -> Iterator[Problem]:
    for role, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        for path, message in overlay.problems(pool.template):
            yield f"spec.{role}.template.{path}", message


def _shared_memory(spec: Spec) -> Iterator[Problem]:
    if spec.transfer.transport == "SharedMemory":
        yield "spec.transfer.transport", "SharedMemory does not work between pods; use Auto, TCP or RDMA"


_Check = Callable[[Spec], Iterator[Problem]]
_EVERYWHERE: tuple[_Check, ...] = (_numerics, _tensor_parallel)
_AS_PROCESSES: tuple[_Check, ...] = (_source, _pod_template, _gateway_replicas)
_IN_CONTAINERS: tuple[_Check, ...] = (_additions, _shared_memory)
