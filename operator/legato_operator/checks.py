"""What a manifest may ask for and this cluster cannot give. Each check gives (path, message) or nothing."""

from collections.abc import Callable, Iterator

from legato_operator.resources import Spec

Problem = tuple[str, str]


def unavailable(spec: Spec) -> list[Problem]:
    """Everything in a spec that is valid and cannot be done."""
    return [problem for check in _CHECKS for problem in check(spec)]


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
                "is not available yet; use builtin, or path to a local folder or GGUF file",
            )


def _tensor_parallel(spec: Spec) -> Iterator[Problem]:
    for role, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        if pool.parallelism.tensor > 1:
            yield f"spec.{role}.parallelism.tensor", "more than 1 is not available yet"


def _pod_template(spec: Spec) -> Iterator[Problem]:
    for role, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        if pool.template:
            yield f"spec.{role}.template", "is not available yet: workers are processes of this machine"


def _gateway_replicas(spec: Spec) -> Iterator[Problem]:
    if spec.gateway.replicas > 1:
        yield "spec.gateway.replicas", "more than 1 is not available yet: one gateway owns the port of this machine"


_CHECKS: tuple[Callable[[Spec], Iterator[Problem]], ...] = (
    _numerics,
    _source,
    _tensor_parallel,
    _pod_template,
    _gateway_replicas,
)
