"""Kernels for AMX compute what their readable twins do, on any processor: where there is no AMX, with its instructions
emulated, which also notes misuse of tiles.
"""

from functools import cache

import emulated_kernels
import emulated_tiles
import numba
import numpy as np
import pytest
import torch
from numba import njit

from legato_engine import processor
from legato_engine.backends.cpu.attention_work import tiles as work_of
from legato_engine.kernels import bfloat16
from legato_engine.kernels.attention import naive as naive_attention
from legato_engine.kernels.linear import naive as naive_linear
from legato_engine.kernels.vector import address, load, store
from legato_engine.runner import inputs
from legato_engine.scheduler.batch import Row

needs_amx = pytest.mark.skipif(not processor.detect().amx, reason="this processor has no AMX")
NAMES = ("attention.numba_bf16", "linear.numba_tiles")
LENGTHS = [(0, 33), (99, 1), (0, 1), (50, 7), (15, 1), (300, 1), (250, 9), (0, 75), (127, 2)]  # start, tokens
emulated = cache(emulated_kernels.load)


@pytest.fixture(params=["emulated", pytest.param("real", marks=needs_amx)])
def kernels(request):
    """Modules of attention and linear layers; whatever is computed with them has used tiles as it should."""
    if request.param == "emulated":
        yield emulated(*NAMES)
        assert emulated_tiles.faults() == []
    else:
        from legato_engine.kernels.attention import numba_bf16
        from legato_engine.kernels.linear import numba_tiles

        yield numba_bf16, numba_tiles


def bits(x):
    return x.bfloat16().view(torch.int16).numpy().view(np.uint16)


def floats(array):
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).float()


def attend(kernels, qkv, rows, arena, layer, window=None, threads=2, ordered=lambda work: work):
    """What the kernel makes of `rows` [tokens, heads, dim]."""
    _, _, _, kv_heads, size, dim = arena.shape
    attention, linear = kernels
    heads = qkv.shape[1] - 2 * kv_heads
    step, out = inputs.build(rows, size), np.full((len(qkv), heads, dim), 0xFFFF, np.uint16)
    work = ordered(work_of(step, heads // kv_heads))
    attention.attention(qkv.numpy(), work, step.tables, window or 0, linear.SHAPES, bits(arena), layer, threads, out)
    return floats(out)


def expected(qkv, rows, arena, layer, window=None):
    kv_heads, counts = arena.shape[3], [len(row.tokens) for row in rows]
    asked = qkv[:, : qkv.shape[1] - 2 * kv_heads].split(counts)
    return torch.cat(
        [
            naive_attention.attention(queries, arena[:, layer].float(), list(row.blocks), row.start, window)
            for queries, row in zip(asked, rows, strict=True)
        ]
    )


@pytest.mark.parametrize("window", [None, 5, 48, 140])
@pytest.mark.parametrize(
    ("shared", "size", "dim", "kv_heads"),
    [(1, 16, 96, 3), (3, 16, 64, 3), (3, 32, 32, 2), (5, 48, 32, 1), (8, 64, 32, 2), (7, 16, 128, 1), (40, 16, 64, 1)],
)
def test_attention(kernels, window, shared, size, dim, kv_heads):
    """Chunks of prompts and decoding rows together; blocks in any order, in which others left what is no number."""
    draw = torch.Generator().manual_seed(1)
    arena = torch.randn(200, 2, 2, kv_heads, size, dim, generator=draw).bfloat16()
    free, rows = torch.randperm(200, generator=draw).tolist(), []
    for start, count in LENGTHS:
        blocks = [free.pop() for _ in range(-(-(start + count) // size))]
        rows.append(Row([0] * count, start, blocks))
        arena[blocks[-1], :, :, :, (start + count - 1) % size + 1 :] = torch.nan
        if window:  # what no token of the row sees any more may be someone else's
            arena[blocks[: max(0, start - window + 1) // size]] = torch.nan
    arena[free], arena[:, 0] = torch.nan, torch.nan
    qkv = torch.randn(sum(count for _, count in LENGTHS), (shared + 2) * kv_heads, dim, generator=draw)

    found = attend(kernels, qkv, rows, arena, 1, window)

    torch.testing.assert_close(found, expected(qkv, rows, arena, 1, window), atol=8e-3, rtol=8e-3)


def test_attention_is_the_same_beside_other_rows_with_any_number_of_threads_and_in_any_order(kernels):
    draw = torch.Generator().manual_seed(2)
    arena = torch.randn(300, 1, 2, 3, 16, 64, generator=draw).bfloat16()
    rows = [
        Row([0] * 40, 500, list(range(70))),
        Row([0], 1000, list(range(100, 163))),
        Row([0] * 3, 700, [*range(200, 250)]),
    ]
    qkv, alone, begin = torch.randn(44, 15, 64, generator=draw), [], 0
    for row in rows:
        alone.append(attend(kernels, qkv[begin : begin + len(row.tokens)].contiguous(), [row], arena, 0))
        begin += len(row.tokens)

    for threads in (1, 2, 3):
        assert torch.equal(attend(kernels, qkv, rows, arena, 0, threads=threads), torch.cat(alone))
    for ordered in (lambda work: work[::-1].copy(), np.random.default_rng(1).permutation):
        assert torch.equal(attend(kernels, qkv, rows, arena, 0, ordered=ordered), torch.cat(alone))


def test_weights_add_up_to_what_they_are_divided_by(kernels):
    """The mean of equal values is that value."""
    arena = torch.randn(20, 1, 2, 2, 16, 64).bfloat16()
    arena[:, 0, 1] = 1
    qkv, rows = torch.randn(51, 10, 64), [Row([0] * 50, 211, list(range(17))), Row([0], 20, [18, 19])]

    found = attend(kernels, qkv, rows, arena, 0)

    assert torch.equal(found, torch.ones_like(found))


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_any_size(kernels, sign):
    """Their differences are far beyond what a weight can be: the largest is found early, or again in each block."""
    arena, blocks = torch.zeros(20, 1, 2, 1, 16, 32).bfloat16(), list(range(20))
    arena[:, 0, 0] = sign * torch.linspace(-3000, 3000, 320).view(20, 1, 16, 1)
    arena[:, 0, 1] = torch.randn(20, 1, 16, 32)
    qkv, rows = torch.ones(31, 5, 32), [Row([0] * 30, 280, blocks), Row([0], 309, blocks)]

    found = attend(kernels, qkv, rows, arena, 0)

    torch.testing.assert_close(found, expected(qkv, rows, arena, 0), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_attention_makes_no_number_of_what_is_none(kernels, which, number):
    """Keys and values that are broken in the cache: the result is none either, for a prompt and for a decoding row, and
    the row beside them does not see it."""
    arena = torch.randn(9, 1, 2, 2, 16, 32).bfloat16()
    arena[3, 0, which, :, 5] = number
    rows = [Row([0] * 20, 40, [1, 2, 3, 4]), Row([0], 60, [4, 1, 3, 2]), Row([0], 20, [5, 6])]
    rows.append(Row([0], 400, [3, *(7, 8) * 13]))
    qkv = torch.randn(23, 10, 32)
    qkv[:, :6, 0] = qkv[:, :6, 0].abs() + 1

    found = attend(kernels, qkv, rows, arena, 0)

    right = expected(qkv, rows, arena, 0)
    lost = ~right.isfinite()
    assert lost.any()
    assert not found[lost].isfinite().any()
    torch.testing.assert_close(found[21:22], right[21:22], atol=8e-3, rtol=8e-3)


def test_attention_to_keys_that_are_all_infinitely_far_is_no_number(kernels):
    arena = torch.full((2, 1, 2, 1, 16, 32), -torch.inf)
    rows = [Row([0] * 20, 0, [0, 1]), Row([0], 20, [0, 1])]

    assert attend(kernels, torch.ones(21, 5, 32), rows, arena, 0).isnan().all()


def test_positions_that_are_infinitely_far_weigh_nothing(kernels):
    """Be they all that a block of positions has, the first one or a later one."""
    arena, blocks = torch.randn(30, 1, 2, 1, 16, 32).bfloat16(), list(range(30))
    arena[:10, 0, 0], arena[18:28, 0, 0] = -torch.inf, -torch.inf
    qkv, rows = torch.rand(21, 5, 32) + 0.1, [Row([0] * 20, 450, blocks), Row([0], 475, blocks)]

    found = attend(kernels, qkv, rows, arena, 0)

    torch.testing.assert_close(found, expected(qkv, rows, arena, 0), atol=8e-3, rtol=8e-3)


@pytest.mark.parametrize(("shared", "products"), [(1, 1), (16, 1), (17, 2), (32, 2), (40, 3)])
def test_what_16_lanes_are_computed_with_is_half_of_what_32_take(shared, products):
    """200 positions are 7 times 32; scores, and values again, take two products for each 32 of 64 dimensions."""
    arena = torch.randn(20, 1, 2, 1, 16, 64).bfloat16()
    kernels = emulated(*NAMES)
    emulated_tiles.products()

    attend(kernels, torch.randn(1, shared + 2, 64), [Row([0], 199, list(range(13)))], arena, 0)

    assert emulated_tiles.products() == products * 7 * 2 * 2 * 2


@pytest.mark.parametrize("rows", [1, 16, 17, 33, 63, 100, 500])
def test_linear(kernels, rows):
    _, tiles = kernels
    room = -(-rows // 16) * 16
    x, weight = torch.randn(room, 160).bfloat16().float(), torch.randn(96, 160).bfloat16().float()
    memory = np.full((room + 16, 96), np.nan, np.float32)
    out = memory[:room]

    tiles.wide(bits(x), rows, tiles.pack_tiles(weight), tiles.SHAPES, numba.get_num_threads(), out)

    right = naive_linear.linear(x, weight)[:rows]
    torch.testing.assert_close(torch.from_numpy(out[:rows]), right, atol=1e-3, rtol=1e-4)
    assert np.isnan(memory[room:]).all()
    if rows == 1:
        tiles.narrow(bits(x), 1, tiles.pack_tiles(weight), out)
        torch.testing.assert_close(torch.from_numpy(out[:1]), right, atol=1e-3, rtol=1e-4)


def test_linear_layers_whose_weights_come_in_groups(kernels):
    """Of two pairs of panels each, so that threads have a group and a part of one."""
    _, tiles = kernels
    inputs = tiles.CACHED // 128
    x, weight = torch.randn(64, inputs).bfloat16(), torch.randn(160, inputs).bfloat16()
    out = np.full((64, 160), np.nan, np.float32)

    tiles.wide(bits(x), 49, tiles.pack_tiles(weight), tiles.SHAPES, numba.get_num_threads(), out)

    right = naive_linear.linear(x.double(), weight.double())[:49].float()
    torch.testing.assert_close(torch.from_numpy(out[:49]), right, atol=1e-2, rtol=1e-4)


@njit
def weights_of(x):
    for at in range(0, 4 * len(x), 64):
        store(address(x) + at, bfloat16.weight(load(address(x) + at)))


def test_weights_are_powers_of_two_in_bfloat16():
    """Those that are no numbers stay none: a score of tiles has no bits in its lower half then."""
    x = np.linspace(-130, 0, 16 * 4096, dtype=np.float32)
    x[:4], exact = [np.nan, -np.inf, -1e30, -127.5], np.exp2(x, dtype=np.float64)
    x.view(np.uint32)[4:7] = 0x7FFF0000, 0xFFFF0000, 0xFF810000

    weights_of(x)

    assert np.isnan(x[[0, 4, 5, 6]]).all()
    assert (x[1:4] == 0).all()
    assert (x.view(np.uint32) & 0xFFFF == 0).all()
    assert x[-1] == 1
    tiny = exact < 2.0**-126
    np.testing.assert_allclose(x[~tiny][7:], exact[~tiny][7:], rtol=2**-8 + 1.2e-4)
    assert (x[tiny & ~np.isnan(x)] <= 2.0**-126).all()
