"""Norm of heads, rotary embedding and the KV write in Triton, in one launch. The maths is in `reference/rope.md`.

A program takes a few heads of a few tokens: of queries, or of keys with their values.
"""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.float8 import encoded


@triton.jit
def _normed(first, second, weight, near, far, pair, eps, HALF: tl.constexpr, dtype: tl.constexpr):
    """RMSNorm of each head, both numbers of its pairs [TOKENS, HEADS, PAIRS] in float32."""
    squares = tl.sum(first * first, 2) + tl.sum(second * second, 2)
    scale = tl.rsqrt(squares / (2 * HALF) + eps)[:, :, None]
    first_weight = tl.load(weight + near, mask=pair < HALF, other=0.0)
    second_weight = tl.load(weight + far, mask=pair < HALF, other=0.0)
    first = (first * scale).to(first_weight.dtype).to(tl.float32) * first_weight.to(tl.float32)
    second = (second * scale).to(first_weight.dtype).to(tl.float32) * second_weight.to(tl.float32)
    first, second = first.to(dtype).to(tl.float32), second.to(dtype).to(tl.float32)
    return first, second


@triton.jit
def _rotated(at, inside, weight, cosines, sines, near, far, pair, eps, HALF: tl.constexpr):
    """The pairs of the heads at `at`, normed if there is a weight, and rotated."""
    first = tl.load(at + near, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + far, mask=inside, other=0.0).to(tl.float32)
    if weight is not None:
        first, second = _normed(first, second, weight, near, far, pair, eps, HALF, at.dtype.element_ty)
    return first * cosines - second * sines, second * cosines + first * sines


@triton.jit
def _write(to, near, far, first, second, factor, inside):
    """Writes the pairs of keys or values: times the factor in e4m3, as uint8, or as floats."""
    if factor is not None:
        first, second = encoded(first.to(tl.float32) * factor), encoded(second.to(tl.float32) * factor)
    tl.store(to + near, first.to(to.dtype.element_ty), mask=inside)
    tl.store(to + far, second.to(to.dtype.element_ty), mask=inside)


@triton.jit
def _angles(cos, sin, position, pair, known, ROTATED: tl.constexpr):
    """Cosines and sines [TOKENS, 1, PAIRS]; pairs that are not rotated have the angle 0."""
    angle = position * ROTATED + pair
    cosines = tl.load(cos + angle, mask=known & (pair < ROTATED), other=1.0)
    sines = tl.load(sin + angle, mask=known & (pair < ROTATED), other=0.0)
    return cosines, sines


@triton.jit
def _write_values(at, to, near, far, factor, inside):
    """Copies the pairs of values at `at`."""
    first, second = tl.load(at + near, mask=inside), tl.load(at + far, mask=inside)
    _write(to, near, far, first, second, factor, inside)


@triton.jit(do_not_specialize=["tokens"])  # compiled once for all sizes of a step
def _norm_rotate_write(
    qkv,  # [tokens, (heads + 2 · kv_heads) · 2 · HALF]
    positions,  # [tokens]
    slots,  # [tokens]
    cos,  # [max_length, ROTATED]
    sin,
    query_norm,  # [2 · HALF], or None
    key_norm,
    layer,  # [blocks, 2, kv_heads, BLOCK, 2 · HALF]
    factors,  # [2, kv_heads] for e4m3, or None
    tokens,
    qkv_stride,
    block_stride,
    values_stride,
    head_stride,
    place_stride,
    eps,
    QUERY_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF: tl.constexpr,
    ROTATED: tl.constexpr,  # pairs of a head
    PAIRS: tl.constexpr,  # HALF, padded to a power of two
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
):
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    pair = tl.arange(0, PAIRS)[None, None, :]
    slot = tl.load(slots + token, mask=token < tokens, other=-1)
    known = slot >= 0
    position = tl.load(positions + token, mask=known, other=0).to(tl.int64)
    cosines, sines = _angles(cos, sin, position, pair, known, ROTATED)
    near, far = pair, pair + HALF  # the numbers of a pair in their head
    if ROTATED != HALF:  # rotated pairs come first; the other numbers are pairs that stay as they are
        near = tl.where(pair < ROTATED, pair, pair + ROTATED)
        far = tl.where(pair < ROTATED, pair + ROTATED, pair + HALF)
    row = qkv + token.to(tl.int64) * qkv_stride
    query_parts: tl.constexpr = (QUERY_HEADS + HEADS - 1) // HEADS
    part = tl.program_id(1)
    if part < query_parts:
        head = part * HEADS + tl.arange(0, HEADS)[None, :, None]
        inside = known & (head < QUERY_HEADS) & (pair < HALF)
        at = row + head * (2 * HALF)
        first, second = _rotated(at, inside, query_norm, cosines, sines, near, far, pair, eps, HALF)
        tl.store(at + near, first.to(qkv.dtype.element_ty), mask=inside)
        tl.store(at + far, second.to(qkv.dtype.element_ty), mask=inside)
    else:
        head = (part - query_parts) * HEADS + tl.arange(0, HEADS)[None, :, None]
        inside = known & (head < KV_HEADS) & (pair < HALF)
        at = row + (QUERY_HEADS + head) * (2 * HALF)
        place = (slot // BLOCK).to(tl.int64) * block_stride + (slot % BLOCK) * place_stride
        to = layer + place + head.to(tl.int64) * head_stride
        first, second = _rotated(at, inside, key_norm, cosines, sines, near, far, pair, eps, HALF)
        key_factor, value_factor = None, None
        if factors is not None:
            key_factor = tl.load(factors + head, mask=head < KV_HEADS, other=0.0)
            value_factor = tl.load(factors + KV_HEADS + head, mask=head < KV_HEADS, other=0.0)
        _write(to, near, far, first, second, key_factor, inside)
        _write_values(at + KV_HEADS * 2 * HALF, to + values_stride, near, far, value_factor, inside)


def norm_rotate_write(
    qkv: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    eps: float,
    heads: int,
    layer: torch.Tensor,
    factors: torch.Tensor | None,
    config: Configuration,
) -> None:
    """Norms queries and keys by head if they have weights, and rotates both: queries in place, keys while they are
    written to the arena with their values. Keys in `qkv` stay as they are.

    qkv [tokens, (heads + 2 · kv_heads) · dim]; positions, slots int32 [tokens]; cos, sin float32 [max_length, pairs]:
    of a head, the first 2 · pairs numbers are rotated; norms [dim]; layer [blocks, 2, kv_heads, block_size, dim],
    strided, in floats or e4m3; for e4m3, factors float32 [2, kv_heads] multiply keys and values. Tokens with a negative
    slot are padding, neither read nor written. Tiles: TOKENS and HEADS that a program takes.
    """
    _, _, kv_heads, block_size, dim = layer.shape
    if factors is not None:
        layer = layer.view(torch.uint8)
    tile = config.tiles["HEADS"]
    grid = (triton.cdiv(qkv.shape[0], config.tiles["TOKENS"]), triton.cdiv(heads, tile) + triton.cdiv(kv_heads, tile))
    _norm_rotate_write[grid](
        qkv,
        positions,
        slots,
        cos,
        sin,
        query_norm,
        key_norm,
        layer,
        factors,
        qkv.shape[0],
        qkv.stride(0),
        *layer.stride()[:4],
        eps,
        QUERY_HEADS=heads,
        KV_HEADS=kv_heads,
        BLOCK=block_size,
        HALF=dim // 2,
        ROTATED=cos.shape[1],
        PAIRS=triton.next_power_of_2(dim // 2),
        **config.options,
    )
