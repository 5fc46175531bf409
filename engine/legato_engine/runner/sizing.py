"""Works out the memory of a worker before anything is read, and the share of it that is left for the KV cache."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from legato_engine import capacity
from legato_engine.backends.sharded.rank import Rank
from legato_engine.backends.sharded.sum_group import FEWEST
from legato_engine.errors import TooLittleMemory
from legato_engine.kvcache.layout import KVLayout
from legato_engine.models.config import ModelConfig
from legato_engine.runner.formats import Formats
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import expected_shapes

_MIB = 1 << 20
PROCESS = 300 * _MIB  # compiled kernels, threads and allocators of a core that has loaded torch
NCCL = 256 * _MIB  # assumed for its buffers on a GPU
RESERVE = 512 * _MIB, 0.1  # `Auto` leaves free the larger of these bytes and this share of the available memory
SHARED = 0.25  # largest part of available memory for the KV cache, if other programs use the memory, too
MOST_DRAWS = 128  # rows that a GPU samples together


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a model takes in addition to its KV cache. `weights` includes adapters; `workspace` is an estimate of
    a step's results and of loading; each position of the longest sequence takes `angles` in rotary tables."""

    weights: int
    workspace: int
    angles: int = 0

    def with_tables(self, max_length: int) -> "Needs":
        """These needs with rotary tables for `max_length` positions, as part of the workspace."""
        return Needs(self.weights, self.workspace + self.angles * max_length)

    def __add__(self, other: "Needs") -> "Needs":
        """The needs of two models in one process."""
        workspace = self.workspace + other.workspace - PROCESS
        return Needs(self.weights + other.weights, workspace, self.angles + other.angles)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that a worker may take of a machine or device. `shared`: other programs use the memory, too."""

    available: int
    shared: bool = False


@dataclass(frozen=True, slots=True)
class AskedSizes:
    """Sizes from the settings. None: Auto."""

    kv_cache_bytes: int | None
    max_length: int | None
    max_running: int | None


@dataclass(frozen=True, slots=True)
class ChosenSizes:
    """Bytes of the KV cache, tokens of the longest sequence, and number of sequences that run at the same time."""

    kv_cache_bytes: int
    max_length: int
    max_running: int

    def sequences(self, layout: KVLayout, declared: int) -> str:
        """Describes the sequences; `declared` is the length that the model's config declares."""
        notes = [f"the model allows {declared:,}"] if self.max_length < declared else []
        if (fitting := int(_fitting(self, layout))) < self.max_running:
            notes.append(f"{fitting:,} of {capacity.expected_tokens(self.max_length)} tokens fit together")
        noted = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.max_running:,} sequences of at most {self.max_length:,} tokens{noted}"


def needs(
    checkpoint: Checkpoint, chosen: Formats, chunk_tokens: int, max_batch: int, adapter_values: int = 0, ranks: int = 1
) -> Needs:
    """The needs of a worker, of all its ranks together, whose largest step has `chunk_tokens` prompt tokens and
    `max_batch` decoding sequences; adapters in memory have `adapter_values` numbers."""
    config, own = checkpoint.config, Rank(0, ranks).config(checkpoint.config)
    shapes = expected_shapes(config)
    weights = sum(math.prod(shape) * chosen.value_bytes(checkpoint, name) for name, shape in shapes.items())
    largest = max(map(math.prod, shapes.values()))  # of which each rank loads a part
    width = 6 * config.hidden_size + (2 * own.heads + 2 * own.kv_heads) * config.head_dim
    width += _mlp_width(own, chosen)
    logits = (3 if ranks == 1 else 4) * max_batch  # rows, as wide as the vocabulary
    if chosen.backend == "cuda":  # the sampler has memory of its own, and each rank has the logits of all
        logits = 2 * max_batch * ranks + 4 * min(max_batch, MOST_DRAWS)
    step = ranks * (chunk_tokens + max_batch) * width + logits * config.vocab_size
    adapters = adapter_values * chosen.adapter_bytes
    rotations = {config.rotation(layer) for layer in range(config.layers)}
    angles = sum(4 * rotation.dim for rotation in rotations if rotation)  # a cosine and a sine for each two numbers
    process = PROCESS + (NCCL if chosen.backend == "cuda" and ranks >= FEWEST else 0)
    return Needs(int(weights) + adapters, ranks * process + 4 * (step + largest), ranks * angles)


def _mlp_width(config: ModelConfig, chosen: Formats) -> int:
    """Numbers of a token's results in its MLP or experts, of which CPUs compute one at a time."""
    inner = max(config.inner_sizes.values())
    if config.experts is None:
        return 3 * inner
    together = 1 if chosen.backend == "cpu" else config.experts.routing.active
    return config.hidden_size + together * (2 * config.hidden_size + 3 * inner)


def choose(
    needs_of: Callable[[int], Needs],
    layout: KVLayout,
    declared: int,
    asked: AskedSizes,
    memory: Memory | None,
    chunk_tokens: int = 0,
) -> ChosenSizes:
    """Returns the sizes that were asked for, and for Auto those that memory allows. Raises TooLittleMemory.

    `needs_of` returns the memory in addition to the KV cache for a number of running sequences: a step's results grow
    with it. `declared` is the longest sequence of the model. Without `memory`, nothing is checked, and the size of the
    KV cache must be given. Steps compute at most `chunk_tokens` of a prompt."""
    least = asked.max_length or capacity.expected_tokens(declared)
    most_kv = asked.kv_cache_bytes or (memory.available if memory else 0)
    longest = asked.max_length or max(least, min(declared, layout.tokens_within(most_kv, chunk_tokens)))

    def with_running(running: int) -> ChosenSizes:
        needs = needs_of(running).with_tables(longest)
        size = _cache(needs, layout, asked.kv_cache_bytes, memory, least, chunk_tokens)
        fitting = layout.tokens_within(size, chunk_tokens)
        return ChosenSizes(size, asked.max_length or max(least, min(declared, fitting)), running)

    if asked.max_running is not None:
        return _with_asked(asked.max_running, with_running)
    smallest = with_running(capacity.FEWEST)
    for running in range(_most_running(smallest, layout), capacity.FEWEST, -capacity.STEP):
        with suppress(TooLittleMemory):
            if _most_running(larger := with_running(running), layout) >= running:
                return larger
    return smallest


def _with_asked(running: int, with_running: Callable[[int], ChosenSizes]) -> ChosenSizes:
    """Raises TooLittleMemory, with a number of running sequences that would fit, if there is one."""

    def fits(fewer: int) -> bool:
        with suppress(TooLittleMemory):
            return bool(with_running(fewer))
        return False

    try:
        return with_running(running)
    except TooLittleMemory as error:
        fewer = filter(fits, range((running - 1) // capacity.STEP * capacity.STEP, 0, -capacity.STEP))
        if most := next(fewer, 0):
            raise TooLittleMemory(f"{error}, or a maxRunning of at most {most}") from None
        raise


def longest_within(declared: int, layout: KVLayout, most_bytes: int, chunk_tokens: int = 0) -> int:
    """Tokens of the longest sequence whose KV takes at most `most_bytes`; at least an expected sequence."""
    return min(declared, max(layout.tokens_within(most_bytes, chunk_tokens), capacity.EXPECTED_TOKENS))


def _cache(
    needs: Needs, layout: KVLayout, asked: int | None, memory: Memory | None, least: int, chunk_tokens: int
) -> int:
    """Returns the bytes of the KV cache, which fit into `memory`. With Auto, they hold at least `least` tokens."""
    if memory is None:
        assert asked is not None
        return asked
    if asked is None:
        return kv_bytes(needs, layout, memory, least, chunk_tokens)
    check(needs, layout, asked, memory.available, least, chunk_tokens)
    return asked


def _most_running(sizes: ChosenSizes, layout: KVLayout) -> int:
    return capacity.max_running(
        int(_fitting(sizes, layout) * capacity.expected_tokens(sizes.max_length)), sizes.max_length
    )


def _fitting(sizes: ChosenSizes, layout: KVLayout) -> float:
    """Number of sequences of the expected length that the KV cache holds."""
    expected = capacity.expected_tokens(sizes.max_length)
    return sizes.kv_cache_bytes // layout.whole_bytes / layout.sizes(0).decoding(expected)


def without_host_kv(memory: Memory, size: int) -> Memory:
    """Returns the host's memory that is left with `hostKVMemory` of this size. Raises TooLittleMemory."""
    if size > memory.available:
        most = f"give a hostKVMemory of at most {memory.available // _MIB}Mi"
        raise TooLittleMemory(
            f"hostKVMemory is {_mib(size)}; {_mib(memory.available)} of the host's memory are available: {most}"
        )
    return Memory(memory.available - size, memory.shared)


def kv_bytes(needs: Needs, layout: KVLayout, memory: Memory, least: int, chunk_tokens: int = 0) -> int:
    """Returns the size of the KV cache with `kvCacheMemory: Auto`: the remaining memory, less a reserve.

    Of shared memory, it is at most the part `SHARED`, or the size of `least` tokens if that is more.

    Raises TooLittleMemory if `least` tokens do not fit."""
    available, smallest = memory.available, layout.bytes_for(least, chunk_tokens)
    left = available - int(max(RESERVE[0], RESERVE[1] * available)) - needs.weights - needs.workspace
    if left < smallest:
        raise _refusal(needs, layout, 0, available, left, least, chunk_tokens)
    size = min(left, max(int(SHARED * available), smallest)) if memory.shared else left
    return size // layout.whole_bytes * layout.whole_bytes


def check(
    needs: Needs, layout: KVLayout, kv_cache_bytes: int, available: int, max_length: int, chunk_tokens: int = 0
) -> None:
    """Raises TooLittleMemory when weights, workspace and a KV cache of that size are more than is available."""
    left = available - needs.weights - needs.workspace
    if kv_cache_bytes > left:
        raise _refusal(needs, layout, kv_cache_bytes, available, left, max_length, chunk_tokens)


def _refusal(
    needs: Needs, layout: KVLayout, kv_cache_bytes: int, available: int, left: int, max_length: int, chunk_tokens: int
) -> TooLittleMemory:
    cache = f"the KV cache {_mib(kv_cache_bytes)}" if kv_cache_bytes else "kvCacheMemory is Auto"
    return TooLittleMemory(
        f"weights take {_mib(needs.weights)}, workspace about {_mib(needs.workspace)}, {cache}; "
        f"{_mib(available)} are available: {_what_fits(layout, left, max_length, chunk_tokens)}"
    )


def _what_fits(layout: KVLayout, left: int, max_length: int, chunk_tokens: int) -> str:
    tokens = layout.tokens_within(left // _MIB * _MIB, chunk_tokens)
    if tokens >= max_length:
        return f"give a kvCacheMemory of at most {left // _MIB}Mi"
    needed = layout.bytes_for(max_length, chunk_tokens) - left
    more = f"at least {_mib(needed)} more memory for sequences of {max_length} tokens"
    if tokens < 2:
        return f"there is no room for a KV cache: it takes {more}, or a smaller model"
    return f"it takes {more}, or a maxLength of at most {tokens} with a kvCacheMemory of at most {left // _MIB}Mi"


def _mib(size: int) -> str:
    return f"{-(-size // _MIB):,} MiB"
