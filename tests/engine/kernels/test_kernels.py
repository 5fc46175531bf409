"""Every fast kernel computes what its readable twin does, at awkward sizes too."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legato_engine import processor
from legato_engine.backends.cpu import low_rank
from legato_engine.backends.cpu.codes import Codes
from legato_engine.backends.torch.step import MASK_ENTRIES, group_rows
from legato_engine.kernels.attention import naive as naive_attention
from legato_engine.kernels.attention import torch as attention
from legato_engine.kernels.low_rank import naive as naive_low_rank
from legato_engine.kernels.low_rank import torch as torch_low_rank
from legato_engine.kernels.rms_norm import naive as naive_rms_norm
from legato_engine.kernels.rms_norm import torch as rms_norm
from legato_engine.kernels.rope import naive as naive_rope
from legato_engine.kernels.rope import torch as rope
from legato_engine.kernels.silu_mul import naive as naive_silu_mul
from legato_engine.kernels.silu_mul import torch as silu_mul
from legato_engine.layers.low_rank import Adapter, LowRank, Up
from legato_engine.runner import inputs
from legato_engine.scheduler.batch import Row
from legato_engine.weights.packed import Packed, Scales

needs_bf16 = pytest.mark.skipif(not processor.detect().bf16, reason="this processor has no bfloat16 instructions")
BLOCK = 16


def bits(x):
    return x.bfloat16().view(torch.int16).numpy().view(np.uint16)


def floats(array):
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).float()


@pytest.mark.parametrize("rows", [1, 63])
@pytest.mark.parametrize("width", [63, 100, 500])
def test_norm_and_gate(rows, width):
    x, residual, weight = torch.randn(rows, width), torch.randn(rows, width), torch.randn(width)
    twin = residual.clone()

    torch.testing.assert_close(
        rms_norm.add_rms_norm(x, residual, weight, 1e-5), naive_rms_norm.add_rms_norm(x, twin, weight, 1e-5)
    )
    torch.testing.assert_close(residual, twin)
    gate_up = torch.randn(rows, 2 * width)
    expected = naive_silu_mul.silu_mul(gate_up)
    torch.testing.assert_close(silu_mul.silu_mul(gate_up), expected)


@pytest.mark.parametrize("tokens", [1, 63, 100])
def test_rotation_and_write(tokens):
    x, angles = torch.randn(tokens, 4, 20), torch.randn(tokens, 10)
    cos, sin = angles.cos(), angles.sin()

    turned = rope.rotate(x, cos[:, None], sin[:, None])

    torch.testing.assert_close(turned, naive_rope.rotate(x, cos, sin))
    layer, twin = torch.zeros(2, 9, 2, 4, BLOCK, 20)
    slots = torch.randperm(9 * BLOCK)[:tokens]
    rope.write_kv(turned, x, layer, slots // BLOCK, slots % BLOCK)
    naive_rope.write_kv(turned, x, twin, slots)
    assert torch.equal(layer, twin)


def some_rows():
    """Chunks of 63, 100 and 17 tokens with and without a prefix, and rows that decode, in blocks of no order."""
    free = iter(torch.randperm(200).tolist())
    rows = []
    for start, count in [(0, 63), (37, 100), (500, 1), (0, 1), (63, 1), (160, 17)]:
        blocks = [next(free) for _ in range(-(-(start + count) // BLOCK))]
        rows.append(Row([1] * count, start, blocks))
    return tuple(rows)


def expected_attention(rows, queries, layer, window):
    found, token = [], 0
    for row in rows:
        mine = queries[token : token + len(row.tokens)]
        found.append(naive_attention.attention(mine, layer, list(row.blocks), row.start, window))
        token += len(row.tokens)
    return torch.cat(found)


@pytest.mark.parametrize("entries", [50_000, 1 << 22])
@pytest.mark.parametrize("window", [None, 50])
def test_attention_of_mixed_rows(window, entries):
    rows = some_rows()
    queries, layer = torch.randn(sum(len(row.tokens) for row in rows), 6, 20), torch.randn(200, 2, 2, BLOCK, 20)

    groups = group_rows(inputs.build(rows, BLOCK), BLOCK, 3, window, torch.float32, torch.device("cpu"), entries)
    found = attention.attention(queries, layer, groups)

    torch.testing.assert_close(found, expected_attention(rows, queries, layer, window), atol=1e-5, rtol=1e-4)


def test_no_mask_is_as_large_as_a_chunk_times_its_context():
    row = Row([1] * 512, 3584, tuple(range(256)))
    queries, layer = torch.randn(512, 6, 20), torch.randn(256, 2, 2, BLOCK, 20)

    with Largest() as largest:
        groups = group_rows(inputs.build((row,), BLOCK), BLOCK, 3, None, torch.float32, torch.device("cpu"))
        found = attention.attention(queries, layer, groups)

    assert largest.entries <= MASK_ENTRIES < 3 * 512 * 4096
    whole = group_rows(inputs.build((row,), BLOCK), BLOCK, 3, None, torch.float32, torch.device("cpu"), 1 << 30)
    torch.testing.assert_close(found, attention.attention(queries, layer, whole), atol=1e-5, rtol=1e-4)


class Largest(TorchDispatchMode):
    """Notes how large the largest tensor is that an operator makes."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.entries = max(self.entries, tensor.numel())
        return made


@pytest.mark.parametrize("which", [0, 1])
def test_attention_makes_no_number_of_what_is_none(which):
    rows = [Row([1] * 20, 40, (1, 2, 3, 4)), Row([1], 60, (4, 1, 3, 2)), Row([1], 20, (5, 6))]
    queries, layer = torch.randn(22, 6, 20), torch.randn(9, 2, 2, BLOCK, 20)
    layer[3, which, :, 5] = torch.nan

    groups = group_rows(inputs.build(rows, BLOCK), BLOCK, 3, None, torch.float32, torch.device("cpu"))
    found = attention.attention(queries, layer, groups)

    lost = expected_attention(rows, queries, layer, None).isnan()
    assert lost.any()
    assert found[lost].isnan().all()
    assert found[21].isfinite().all()


@pytest.mark.parametrize("window", [None, 50])
def test_what_others_left_in_a_block_is_not_seen(window):
    rows = some_rows()
    queries, layer = torch.randn(sum(len(row.tokens) for row in rows), 6, 20), torch.randn(200, 2, 2, BLOCK, 20)
    for row in rows:
        layer[row.blocks[-1], :, :, (row.start + len(row.tokens) - 1) % BLOCK + 1 :] = torch.nan

    groups = group_rows(inputs.build(rows, BLOCK), BLOCK, 3, window, torch.float32, torch.device("cpu"))
    found = attention.attention(queries, layer, groups)

    torch.testing.assert_close(found, expected_attention(rows, queries, layer, window), atol=1e-5, rtol=1e-4)


@needs_bf16
@pytest.mark.parametrize("rows", [1, 7])
def test_norm_gate_and_rotation_to_bfloat16(rows):
    from legato_engine.kernels.rms_norm import numba as norm
    from legato_engine.kernels.silu_mul import numba as gate

    x, residual, weight = torch.randn(rows, 96), torch.randn(rows, 96), torch.randn(96)
    out = np.zeros((rows, 96), np.uint16)
    expected = naive_rms_norm.add_rms_norm(x, residual.clone(), weight, 1e-5)
    norm.add_rms_norm(x.numpy(), residual.numpy(), rows, weight.numpy(), np.float32(1e-5), out)
    torch.testing.assert_close(floats(out), expected, atol=1e-6, rtol=0.008)

    gate_up = torch.randn(rows, 192) * 10
    gate.silu_mul(gate_up.numpy(), rows, out)
    torch.testing.assert_close(floats(out), naive_silu_mul.silu_mul(gate_up), atol=1e-6, rtol=0.008)


@needs_bf16
@pytest.mark.parametrize("rows", [1, 3, 4])
def test_codes_are_exact_for_bfloat16_rows(rows):
    scale, minimum = Scales((torch.rand(64, 3) * 0.01).half()), Scales((-torch.rand(64, 3)).half())
    x = torch.randn(rows, 96).bfloat16().float()
    for packed in (
        Packed(4, torch.randint(0, 16, (64, 96), dtype=torch.uint8), scale, minimum),
        Packed(8, torch.randint(-128, 128, (64, 96), dtype=torch.int8), scale),
    ):
        out = np.zeros((rows, 64), np.float32)
        Codes(packed)(bits(x), rows, out)
        torch.testing.assert_close(torch.from_numpy(out), x @ packed.floats().T, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", [np.float32, np.uint16])
@pytest.mark.parametrize("count", [1, 4, 5, 63])
def test_low_rank_updates_are_added_for_their_tokens_alone(kind, count):
    """Two of three projections of one input have an update, of other ranks; bfloat16 is held as uint16."""
    draw = torch.Generator().manual_seed(count)
    x = torch.randn(100, 60, generator=draw).to(torch.bfloat16).float()
    tokens = torch.randperm(100, generator=draw)[:count].sort().values
    down, out = torch.randn(8, 60, generator=draw), torch.randn(100, 70, generator=draw)
    ups = [(slice(0, 3), 0, torch.randn(33, 3, generator=draw)), (slice(3, 8), 50, torch.randn(20, 5, generator=draw))]
    expected, by_torch = out.clone(), out.clone()
    naive_low_rank.add(x, tokens, down, ups, expected)

    torch_low_rank.add(x, tokens, down, ups, by_torch)
    layer = low_rank.packed(Adapter({"q": LowRank(down, tuple(Up(*up) for up in ups))})).updates["q"]
    given = x.numpy() if kind is np.float32 else (x.numpy().view(np.uint32) >> 16).astype(np.uint16)
    layer(given, tokens.numpy(), out.numpy())

    for found in (by_torch, out):
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    rest = [token for token in range(100) if token not in tokens]
    assert torch.equal(out[rest], expected[rest])
