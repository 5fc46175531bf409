"""Rotary embedding in place and the KV write to the arena, in one pass. Each result is
bitwise the same at any position in the arrays, and in every caller that this is compiled into.
"""

from numba import njit, prange

from legato_engine.kernels.cpu.simd.scalar import stored

FEW = 8  # tokens that are not worth waking a second thread for


@njit(cache=True)
def _rotate_head(head, cos, sin):
    half = cos.shape[0]
    for i in range(half):
        first = head[i]
        second = head[half + i]
        head[i] = first * cos[i] - second * sin[i]
        head[half + i] = second * cos[i] + first * sin[i]


@njit(cache=True)
def rotate_row(heads, queries, cos, sin, block, layer, place, factors):
    kv_heads = block.shape[0]
    for head in range(queries + kv_heads):
        _rotate_head(heads[head], cos, sin)
    for which in range(2):
        for head in range(kv_heads):
            source = heads[queries + which * kv_heads + head]
            target, factor = block[head, layer, which, place], factors[layer, which, head]
            for i in range(source.shape[0]):
                target[i] = stored(source[i] * factor, target)


@njit(cache=True, parallel=True, nogil=True)
def _many(qkv, queries, positions, cos, sin, arena, layer, slots, factors):
    size = arena.shape[4]
    for row in prange(positions.shape[0]):
        at = positions[row]
        slot = slots[row]
        rotate_row(qkv[row], queries, cos[at], sin[at], arena[slot // size], layer, slot % size, factors)


@njit(cache=True)
def rotate_and_write(qkv, queries, positions, cos, sin, arena, layer, slots, factors):
    """Rotates queries and keys of qkv float32 [tokens, queries + 2 · kv_heads, dim] and writes keys and values.

    arena float32, bfloat16 as uint16, or e4m3 as uint8, in KVLayout's shape; positions and slots (block · block_size +
    place) int64 [tokens]; cos, sin [positions, pairs]: of a head, the first 2 · pairs numbers are rotated; factors
    float32 [layers, 2, kv_heads], which keys and values are multiplied by.
    """
    if positions.shape[0] > FEW:
        _many(qkv, queries, positions, cos, sin, arena, layer, slots, factors)
        return
    size = arena.shape[4]
    for row in range(positions.shape[0]):
        at = positions[row]
        slot = slots[row]
        rotate_row(qkv[row], queries, cos[at], sin[at], arena[slot // size], layer, slot % size, factors)
