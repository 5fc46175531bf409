"""Checks if the workers of a service fit into memory: weights, workspace and KV cache."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from legato_engine import memory, processor
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.sharded.rank import Rank
from legato_engine.errors import EngineError, TooLittleMemory
from legato_engine.kernels.paths import FLOAT8
from legato_engine.runner import formats, sizing
from legato_engine.runner.drafting.opening import open_draft
from legato_engine.runner.formats import Formats
from legato_engine.runner.plan import DraftPlan, RunnerOptions, layout_of, layout_of_ranks, plan_draft, with_draft
from legato_engine.runner.ranks.degrees import check_codes, fitting
from legato_engine.runner.sizing import AskedSizes, ChosenSizes, Memory, Needs
from legato_engine.settings import BLOCK_SIZES, CHUNK_TOKENS
from legato_engine.transfer.device import staging
from legato_engine.weights import kv_scales
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.opening import open_weights
from legato_operator.api import quantities, roles
from legato_operator.api.resources import Parallelism, Spec
from legato_operator.manifests.pods.worker import compute_threads
from legato_protocol.model_files.degrees import DEGREES, unfit_degree

_MIB = 1 << 20


class DoesNotFit(Exception):
    """A worker's memory is too small, or the model cannot be read. The text has the sizes that would fit."""


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of this machine: one of them, its free bytes, and their number."""

    device: Device
    free: int
    count: int


def lines(spec: Spec, path: Path, gpus: Gpus | None, draft: Path | None = None) -> Iterator[str]:
    """Yields the memory that each pool's workers need on this machine's hardware, with the draft model at `draft`.
    Raises DoesNotFit."""
    for role in roles.with_pool(spec):
        if roles.gpus(spec, role) and gpus is None:
            yield f"{role:<14} requests a GPU, missing here: judged for the processor, as `legato up` runs it"
        drafts = draft if role == roles.DECODE else None  # only decode workers have one
        try:
            yield f"{role:<14} {_with_degree(spec, path, drafts, role, gpus if roles.gpus(spec, role) else None)}"
        except EngineError as error:
            raise DoesNotFit(f"{role:<14} {error}") from None
    if spec.disaggregated:
        _check_alike(spec, path, gpus if roles.gpus(spec, roles.DECODE) else None)


def sharing(spec: Spec, cores: int, on_gpu: bool) -> Iterator[str]:
    """Yields a line if the workers of `legato up` have more threads than `cores`, and thus take time slices."""
    pools = [role for role in roles.with_pool(spec) if not (on_gpu and roles.gpus(spec, role))]
    processes = {role: max(1, roles.initial_replicas(spec, role)) * roles.ranks(spec, role) for role in pools}
    threads = sum(count * min(cores, compute_threads(spec, role, cores) or cores) for role, count in processes.items())
    if threads > cores:
        yield f"{'cores':<14} {cores} for {threads} compute threads: under `legato up`, steps take time slices"


def formats_of(spec: Spec, path: Path, gpus: Gpus | None) -> str:
    """Returns the formats in which workers compute the model. Raises DoesNotFit."""
    on_gpu = any(roles.gpus(spec, role) for role in roles.with_pool(spec))
    try:
        return str(_formats(spec, open_weights(path, spec.engine.quantization), gpus if on_gpu else None)[1])
    except EngineError as error:
        raise DoesNotFit(f"{'formats':<14} {error}") from None


def _formats(spec: Spec, checkpoint: Checkpoint, gpus: Gpus | None, degree: int = 1) -> tuple[int, Formats]:
    """Returns the tokens of a block, and the formats of ranks. Raises EngineError."""
    engine = spec.engine
    size = BLOCK_SIZES["cuda" if gpus else "cpu"] if engine.block_size == "Auto" else engine.block_size
    gpu, config = gpus.device if gpus else None, Rank(0, degree).config(checkpoint.config)
    chosen = formats.choose(engine.dtype, processor.detect(), gpu, config, size, kv_dtype=engine.kv_cache_dtype)
    return size, formats.allowed(chosen, checkpoint, engine.on_kernel_failure)


def degrees(spec: Spec, path: Path, gpus: Gpus | None) -> str:
    """Returns the degrees of tensor parallelism that divide the model. Raises DoesNotFit."""
    on_gpu = any(roles.gpus(spec, role) for role in roles.with_pool(spec))
    try:
        checkpoint = open_weights(path, spec.engine.quantization)
        fit = fitting(checkpoint, _formats(spec, checkpoint, gpus if on_gpu else None)[1])
    except EngineError as error:
        raise DoesNotFit(f"{'degrees':<14} {error}") from None
    return f"parallelism.tensor: {', '.join(map(str, fit))}"


def _check_alike(spec: Spec, path: Path, gpus: Gpus | None) -> None:
    """Raises DoesNotFit if pools of unequal degrees have different formats: kernels need multiples of some sizes, and a
    rank has a part of them."""
    checkpoint = open_weights(path, spec.engine.quantization)

    def form(degree: int) -> str:
        return _formats(spec, checkpoint, gpus, degree)[1].name

    fewer, more = sorted(roles.with_pool(spec), key=lambda role: roles.ranks(spec, role))
    ranks, own, other = roles.ranks(spec, more), form(roles.ranks(spec, more)), form(roles.ranks(spec, fewer))
    if own != other:
        fit = fitting(checkpoint, _formats(spec, checkpoint, gpus)[1])
        alike = ", ".join(str(degree) for degree in fit if form(degree) == other)
        raise DoesNotFit(
            f"{more:<14} {more}.parallelism.tensor: {ranks} ranks compute in the formats {own!r}, {fewer} workers in "
            f"{other!r}, and cannot hand KV over; degrees that fit: {alike}"
        )


def _with_degree(spec: Spec, path: Path, draft: Path | None, role: str, gpus: Gpus | None) -> str:
    """Describes a worker's memory. If a GPU has too little, TooLittleMemory names the degree that fits."""

    def fits(higher: Spec) -> bool:
        with suppress(EngineError, DoesNotFit):
            return bool(_worker(higher, path, draft, role, gpus))
        return False

    try:
        return _worker(spec, path, draft, role, gpus)
    except TooLittleMemory as error:
        enough = (degree for degree, higher in _higher_degrees(spec, role) if gpus and fits(higher))
        if degree := next(enough, 0):
            raise TooLittleMemory(f"{error}; it fits with {role}.parallelism.tensor: {degree}") from None
        raise


def _higher_degrees(spec: Spec, role: str) -> Iterator[tuple[int, Spec]]:
    """Yields the degrees above a pool's, each with the spec that has it instead."""
    pool = roles.pool(spec, role)
    for degree in DEGREES:
        if degree > roles.ranks(spec, role):
            sharded = pool.model_copy(update={"parallelism": Parallelism(tensor=degree)})
            yield degree, spec.model_copy(update={role: sharded})


def _worker(spec: Spec, path: Path, draft_path: Path | None, role: str, gpus: Gpus | None) -> str:
    engine = spec.engine
    checkpoint = open_weights(path, engine.quantization)
    config, degree = checkpoint.config, roles.ranks(spec, role)
    if unfit := unfit_degree(degree, config.heads, config.kv_heads, config.inner_sizes):
        raise DoesNotFit(f"{role:<14} {role}.parallelism.tensor: {unfit}")
    if (spec.model.max_length or 0) > config.max_length:
        raise DoesNotFit(f"{role:<14} model.maxLength is {spec.model.max_length}; the model allows {config.max_length}")
    chunk = CHUNK_TOKENS["cuda" if gpus else "cpu"] if engine.chunk_tokens == "Auto" else engine.chunk_tokens
    size, chosen = _formats(spec, checkpoint, gpus, degree)
    _check_scales(checkpoint, chosen)
    own = layout_of(config, size, chosen.kv)
    draft = _draft(spec, draft_path, checkpoint, gpus) if draft_path is not None else None
    check_codes(checkpoint, chosen, degree)
    ranks = partial(sizing.needs, checkpoint, chosen, chunk, ranks=degree)
    together = layout_of_ranks(own, degree, gpus.device if gpus else None)
    needs_of, layout = with_draft(ranks, together, draft, chunk)
    asked = AskedSizes(engine.kv_cache_memory, spec.model.max_length, engine.max_running)
    host, whose = _available(spec, role)
    room = sizing.without_host_kv(host, engine.host_kv_memory or 0)
    if gpus:
        room, whose = _on_gpu(spec, gpus, degree)
    declared = config.max_length
    if gpus and spec.disaggregated:  # KV of a hand-off lands in the host's memory
        landing = staging.landing_bytes(memory.available() // _workers(spec))
        declared = sizing.longest_within(declared, own, landing, chunk)
    sizes = sizing.choose(needs_of, layout, declared, asked, room, chunk)
    tokens, needs = layout.tokens_within(sizes.kv_cache_bytes, chunk), needs_of(sizes.max_running)
    forms = [chosen.quantized(checkpoint)]
    if draft is not None:
        forms.append(f"{_mib(draft.needs(chunk, sizes.max_running).weights)} of them of the draft model")
    taken = _taken(needs.with_tables(sizes.max_length), sizes, tokens, "; ".join(filter(None, forms)))
    taken = f"{taken} for {sizes.sequences(layout, config.max_length)}"
    if engine.host_kv_memory is not None:
        whose = f"{whose}, in addition to {_mib(engine.host_kv_memory)} of host memory for evicted KV"
    return f"fits: {taken}, of {_mib(room.available)} {whose}"


def _draft(spec: Spec, path: Path, model: Checkpoint, gpus: Gpus | None) -> DraftPlan:
    """Returns the plan of the draft model at `path`. Raises EngineError."""
    engine = spec.engine
    size = BLOCK_SIZES["cuda" if gpus else "cpu"] if engine.block_size == "Auto" else engine.block_size
    options = RunnerOptions(
        dtype=engine.dtype,
        gpu=gpus.device if gpus else None,
        on_kernel_failure=engine.on_kernel_failure,
        block_size=size,
        kv_cache_bytes=None,
        max_length=None,
    )
    return plan_draft(open_draft(path, model), options)


def _check_scales(checkpoint: Checkpoint, chosen: Formats) -> None:
    """Raises CorruptModel for scales that a worker would refuse while it loads the weights."""
    for name in checkpoint.quantized():
        checkpoint.packed_bits(name)
    if chosen.kv == FLOAT8:
        kv_scales.read(checkpoint)


def _taken(needs: Needs, sizes: ChosenSizes, tokens: int, quantized: str) -> str:
    form = f" ({quantized})" if quantized else ""
    return (
        f"weights {_mib(needs.weights)}{form}, workspace about {_mib(needs.workspace)}, KV cache "
        f"{_mib(sizes.kv_cache_bytes)} ({tokens:,} tokens)"
    )


def _available(spec: Spec, role: str) -> tuple[Memory, str]:
    """Returns the manifest's memory for a worker; by default, an equal share of this machine's memory."""
    resources = roles.pool(spec, role).resources
    for kind, amounts in (("limits", resources.limits), ("requests", resources.requests)):
        if "memory" in amounts:
            return Memory(int(quantities.quantity(amounts["memory"]))), f"of {role}.resources.{kind}"
    workers = _workers(spec)
    return Memory(memory.available() // workers, shared=True), f"that this machine has for each of {workers} workers"


def _on_gpu(spec: Spec, gpus: Gpus, degree: int) -> tuple[Memory, str]:
    """Returns the GPU memory of a worker of `legato up`: for each rank, an equal share of a GPU's free memory.

    With more ranks than this machine has GPUs, each rank has a GPU like them."""
    initial = sum(count * roles.ranks(spec, role) for role, count in _least(spec).items())
    sharing = -(-initial // gpus.count) if degree <= gpus.count else 1
    whose = "free on a GPU" if degree == 1 else f"free on {degree} GPUs"
    whose = f"{whose} for each of {sharing} workers" if sharing > 1 else whose
    return Memory(gpus.free // sharing * degree), whose


def _workers(spec: Spec) -> int:
    return sum(_least(spec).values())


def _least(spec: Spec) -> dict[str, int]:
    """Returns the fewest workers of each pool, at least one."""
    return {role: max(1, roles.bounds(spec, role).min) for role in roles.with_pool(spec)}


def _mib(size: int) -> str:
    return f"{-(-size // _MIB):,} MiB"
