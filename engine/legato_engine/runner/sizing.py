"""What a worker needs of memory, worked out before anything is read; and how much of it is left for the KV cache."""

import math
from dataclasses import dataclass

from legato_engine.errors import TooLittleMemory
from legato_engine.kvcache.layout import KVLayout
from legato_engine.runner.formats import Formats
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import expected_shapes

_MIB = 1 << 20
PROCESS = 300 * _MIB  # compiled kernels, threads and allocators of a core that has loaded torch
RESERVE = 512 * _MIB, 0.1  # `Auto` leaves free whichever is more: so many bytes, this share of what is available


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes that a model takes beside its KV cache; `weights` with those of adapters. `workspace` is an estimate:
    results of a step, and loading."""

    weights: int
    workspace: int


def needs(checkpoint: Checkpoint, chosen: Formats, chunk_tokens: int, max_batch: int, adapter_values: int = 0) -> Needs:
    """Of a worker that computes so many prompt tokens and decodes so many sequences in one step, with adapters of so
    many numbers in memory."""
    config = checkpoint.config
    shapes = expected_shapes(config)
    weights = sum(math.prod(shape) * chosen.value_bytes(checkpoint, name) for name, shape in shapes.items())
    largest = max(map(math.prod, shapes.values()))
    width = 6 * config.hidden_size + (2 * config.heads + 2 * config.kv_heads) * config.head_dim
    width += 3 * config.intermediate_size
    logits = 6 if chosen.kernels == "triton" else 3  # as many numbers: the sampler on a GPU has memory of its own
    step = (chunk_tokens + max_batch) * width + logits * max_batch * config.vocab_size
    adapters = adapter_values * chosen.dtype.itemsize
    return Needs(int(weights) + adapters, PROCESS + 4 * (step + largest))


def kv_bytes(needs: Needs, layout: KVLayout, available: int, max_length: int, max_batch: int) -> int:
    """What `kvCacheMemory: Auto` is: all that is left but a reserve, and no more than `max_batch` sequences can use.

    Raises TooLittleMemory when that holds no sequence of `max_length` tokens."""
    most = max_batch * layout.blocks_for(max_length) * layout.block_bytes
    left = available - int(max(RESERVE[0], RESERVE[1] * available)) - needs.weights - needs.workspace
    found = min(left, most) // layout.block_bytes * layout.block_bytes
    if found < layout.blocks_for(max_length) * layout.block_bytes:
        raise _refusal(needs, layout, 0, available, left, max_length)
    return found


def check(needs: Needs, layout: KVLayout, kv_cache_bytes: int, available: int, max_length: int) -> None:
    """Raises TooLittleMemory when weights, workspace and a KV cache of that size are more than is available."""
    left = available - needs.weights - needs.workspace
    if kv_cache_bytes > left:
        raise _refusal(needs, layout, kv_cache_bytes, available, left, max_length)


def _refusal(
    needs: Needs, layout: KVLayout, kv_cache_bytes: int, available: int, left: int, max_length: int
) -> TooLittleMemory:
    cache = f"the KV cache {_mib(kv_cache_bytes)}" if kv_cache_bytes else "kvCacheMemory is Auto"
    return TooLittleMemory(
        f"weights take {_mib(needs.weights)}, workspace about {_mib(needs.workspace)}, {cache}; "
        f"{_mib(available)} are available: {_what_fits(layout, left, max_length)}"
    )


def _what_fits(layout: KVLayout, left: int, max_length: int) -> str:
    tokens = left // _MIB * _MIB // layout.block_bytes * layout.block_size
    if tokens >= max_length:
        return f"give a kvCacheMemory of at most {left // _MIB}Mi"
    needed = layout.blocks_for(max_length) * layout.block_bytes - left
    more = f"at least {_mib(needed)} more memory for sequences of {max_length} tokens"
    if tokens < 2:
        return f"there is no room for a KV cache: it takes {more}, or a smaller model"
    return f"it takes {more}, or a maxLength of at most {tokens} with a kvCacheMemory of at most {left // _MIB}Mi"


def _mib(size: int) -> str:
    return f"{-(-size // _MIB):,} MiB"
