"""Kernels in float32 compute what their readable twins do: attention in the arena and what goes with it."""

from dataclasses import replace
from functools import cache

import emulated_kernels
import numpy as np
import pytest
import torch

from legato_engine import processor
from legato_engine.backends.cpu.attention_work import parts as work_of
from legato_engine.backends.cpu.numerics import Float32
from legato_engine.errors import UnusableFormat
from legato_engine.kernels.attention import naive as naive_attention
from legato_engine.kernels.attention import numba_float32 as attention
from legato_engine.kernels.rms_norm import naive as naive_rms_norm
from legato_engine.kernels.rms_norm import numba as rms_norm
from legato_engine.kernels.rope import naive as naive_rope
from legato_engine.kernels.rope import numba as rope
from legato_engine.kernels.silu_mul import naive as naive_silu_mul
from legato_engine.kernels.silu_mul import numba as silu_mul
from legato_engine.processor import Processor
from legato_engine.runner import formats, inputs
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import Row

WITH_VNNI = pytest.mark.skipif(not processor.detect().vnni, reason="this processor has no AVX-512 VNNI")
WITH_AVX2 = pytest.mark.skipif(not processor.detect().avx2, reason="this processor has no AVX2")
WITH_PAIRS = pytest.mark.skipif(not processor.detect().bf16, reason="this processor has no AVX512-BF16")
FORMS = pytest.mark.parametrize("form", ["float32", "int8", "int8-bf16"])
PLAIN = Processor(avx512=True, bf16=False, amx=False, tiles_described=True)


@cache
def kernels(form):
    """Where the processor has no AVX512-BF16, its instruction is emulated."""
    if form != "int8-bf16" or processor.detect().bf16:
        return attention
    (emulated,) = emulated_kernels.load("attention.numba_float32")
    return emulated


def kind(form):
    """How the arena holds numbers."""
    return torch.float32 if form == "float32" else torch.bfloat16


def close_to(form):
    """How close results are to those of floats: products in pairs round queries and weights."""
    return {"atol": 1e-2, "rtol": 1e-2} if form == "int8-bf16" else {"atol": 2e-5, "rtol": 1e-4}


def attend(qkv, rows, arena, layer, window=None, threads=2, form="int8", ordered=lambda work: work):
    """What the kernel makes of `rows` [tokens, heads, dim]; the arena is float32 or bfloat16."""
    _, _, _, kv_heads, size, dim = arena.shape
    heads = qkv.shape[1] - 2 * kv_heads
    step, out = inputs.build(rows, size), np.zeros((len(qkv), heads, dim), np.float32)
    work = ordered(work_of(step, heads // kv_heads))
    held = Float32(form).held(arena)
    kernels(form).attention(qkv.numpy(), work, step.tables, window or 0, held, layer, threads, out)
    return torch.from_numpy(out)


@FORMS
@pytest.mark.parametrize("window", [None, 5, 48])
@pytest.mark.parametrize(
    ("shared", "size", "dim", "kv_heads"),
    [(1, 16, 96, 3), (3, 4, 64, 3), (3, 16, 32, 2), (5, 12, 32, 1), (8, 4, 32, 2), (7, 16, 128, 1), (16, 16, 256, 1)],
)
def test_attention(form, window, shared, size, dim, kv_heads):
    """Chunks of prompts and decoding rows together, long ones in parts; blocks in any order."""
    lengths = [(0, 33), (99, 1), (0, 1), (50, 7), (size - 1, 1), (300, 1), (250, 9), (0, 75)]
    arena = torch.randn(300, 2, 2, kv_heads, size, dim).to(kind(form))
    free = torch.randperm(300).tolist()
    rows = []
    for start, count in lengths:
        blocks = [free.pop() for _ in range(-(-(start + count) // size))]
        rows.append(Row([0] * count, start, blocks))
        arena[blocks[-1], :, :, :, (start + count - 1) % size + 1 :] = torch.nan  # as others may have left it
    tokens = sum(count for _, count in lengths)
    qkv = torch.randn(tokens, (shared + 2) * kv_heads, dim)

    out = attend(qkv, rows, arena, 1, window, form=form)

    counts = [count for _, count in lengths]
    asked = qkv[:, : shared * kv_heads]
    for found, queries, row in zip(out.split(counts), asked.split(counts), rows, strict=True):
        expected = naive_attention.attention(queries, arena[:, 1], list(row.blocks), row.start, window)
        torch.testing.assert_close(found, expected, **close_to(form))


@FORMS
def test_parts_of_a_row_that_its_window_is_behind_have_nothing_to_do(form):
    """The first two of three, which are also the first tasks."""
    arena, qkv, blocks = torch.randn(38, 1, 2, 3, 16, 64).to(kind(form)), torch.randn(1, 15, 64), list(range(38))

    out = attend(qkv, [Row([0], 600, blocks)], arena, 0, 5, form=form)

    expected = naive_attention.attention(qkv[:, :9], arena[:, 0], blocks, 600, 5)
    torch.testing.assert_close(out, expected, **close_to(form))


@FORMS
def test_attention_is_the_same_beside_other_rows_with_any_number_of_threads_and_in_any_order(form):
    arena = torch.randn(300, 1, 2, 3, 16, 64).to(kind(form))
    rows = [
        Row([0] * 100, 900, list(range(70))),
        Row([0], 1000, list(range(100, 163))),
        Row([0] * 3, 700, [*range(200, 250)]),
    ]
    qkv, alone, begin = torch.randn(104, 15, 64), [], 0
    for row in rows:
        alone.append(attend(qkv[begin : begin + len(row.tokens)].contiguous(), [row], arena, 0, form=form))
        begin += len(row.tokens)

    for threads in (1, 2, 3):
        assert torch.equal(attend(qkv, rows, arena, 0, threads=threads, form=form), torch.cat(alone))
    for ordered in (lambda work: work[::-1].copy(), np.random.default_rng(1).permutation):
        assert torch.equal(attend(qkv, rows, arena, 0, form=form, ordered=ordered), torch.cat(alone))


@FORMS
def test_weights_add_up_to_what_they_are_divided_by(form):
    """Rounded or not: the mean of equal values is that value."""
    arena = torch.randn(20, 1, 2, 2, 16, 64).to(kind(form))
    arena[:, 0, 1] = 1
    qkv, rows = torch.randn(51, 10, 64), [Row([0] * 50, 211, list(range(17))), Row([0], 20, [18, 19])]

    out = attend(qkv, rows, arena, 0, form=form)

    torch.testing.assert_close(out, torch.ones_like(out), atol=3e-6, rtol=0)


@FORMS
def test_scores_of_any_size(form):
    """Their differences are far beyond what a weight can be."""
    arena, blocks = torch.zeros(20, 1, 2, 1, 16, 32).to(kind(form)), list(range(20))
    arena[:, 0, 0] = torch.linspace(-3000, 3000, 320).view(20, 1, 16, 1)
    arena[:, 0, 1] = torch.randn(20, 1, 16, 32)
    qkv, rows = torch.ones(31, 5, 32), [Row([0] * 30, 280, blocks), Row([0], 309, blocks)]

    out = attend(qkv, rows, arena, 0, form=form)

    expected = [naive_attention.attention(qkv[:30, :3], arena[:, 0], blocks, 280, None)]
    expected.append(naive_attention.attention(qkv[30:, :3], arena[:, 0], blocks, 309, None))
    torch.testing.assert_close(out, torch.cat(expected), atol=2e-5, rtol=1e-4)


@FORMS
@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_attention_makes_no_number_of_what_is_none(which, number, form):
    """Keys and values that are broken in the cache: the result is none either, for a prompt and for a decoding row, and
    the row beside them does not see it."""
    shared, arena = 3, torch.randn(9, 1, 2, 2, 16, 32).to(kind(form))
    arena[3, 0, which, :, 5] = number
    rows = [Row([0] * 20, 40, [1, 2, 3, 4]), Row([0], 60, [4, 1, 3, 2]), Row([0], 20, [5, 6])]
    rows.append(Row([0], 400, [3, *(7, 8) * 13]))  # in the first of its parts
    qkv = torch.randn(23, (shared + 2) * 2, 32)
    qkv[:, : shared * 2, 0] = qkv[:, : shared * 2, 0].abs() + 1

    out = attend(qkv, rows, arena, 0, form=form)

    asked = qkv[:, : shared * 2].split([20, 1, 1, 1])
    expected = [
        naive_attention.attention(queries, arena[:, 0], list(row.blocks), row.start, None)
        for queries, row in zip(asked, rows, strict=True)
    ]
    lost = ~torch.cat(expected).isfinite()
    assert lost.any()
    assert not out[lost].isfinite().any()
    torch.testing.assert_close(out[21:22], expected[2], **close_to(form))


@FORMS
def test_attention_to_keys_that_are_all_infinitely_far_is_no_number(form):
    arena = torch.full((2, 1, 2, 1, 16, 32), -torch.inf).to(kind(form))
    qkv, rows = torch.ones(21, 5, 32), [Row([0] * 20, 0, [0, 1]), Row([0], 20, [0, 1])]
    out = attend(qkv, rows, arena, 0, form=form)

    assert out.isnan().all()


def test_norm_and_gate_make_no_number_of_what_is_none():
    """All bits set is a NaN whose rounding to bfloat16 carries into the sign."""
    broken = torch.from_numpy(np.array([0xFFFFFFFF, 0x7FC00000, 0x7F800000], np.uint32).view(np.float32))
    for place in range(3):
        x, gate_up = torch.randn(1, 96), torch.randn(1, 192)
        x[0, 7 + place] = gate_up[0, 7] = gate_up[0, 96 + 40] = broken[place]
        out, halves = np.zeros((1, 96), np.float32), np.zeros((1, 96), np.uint16)
        for target in (out, halves):
            rms_norm.add_rms_norm(x.numpy(), np.zeros((1, 96), np.float32), 1, np.ones(96, np.float32), 1e-5, target)
            found = target if target is out else (target.astype(np.uint32) << 16).view(np.float32)
            assert not np.isfinite(found[0, 7 + place])
            silu_mul.silu_mul(gate_up.numpy(), 1, target)
            found = target if target is out else (target.astype(np.uint32) << 16).view(np.float32)
            assert not np.isfinite(found[0, [7, 40]]).any()


@pytest.mark.parametrize("rows", [1, 63])
@pytest.mark.parametrize("width", [63, 500])
def test_norm_and_gate(rows, width):
    x, residual, weight = torch.randn(rows, width), torch.randn(rows, width), torch.randn(width)
    twin, out = residual.clone(), torch.empty(rows, width)

    rms_norm.add_rms_norm(x.numpy(), residual.numpy(), rows, weight.numpy(), np.float32(1e-5), out.numpy())

    torch.testing.assert_close(out, naive_rms_norm.add_rms_norm(x, twin, weight, 1e-5))
    torch.testing.assert_close(residual, twin)
    gate_up = torch.randn(rows, 2 * width) * 4
    silu_mul.silu_mul(gate_up.numpy(), rows, out.numpy())
    torch.testing.assert_close(out, naive_silu_mul.silu_mul(gate_up))


@pytest.mark.parametrize("rows", [1, 7])
def test_norm_of_heads(rows):
    """Those of a range, and no others."""
    parts, weight = torch.randn(rows, 7, 20), torch.randn(20)
    expected = parts.clone()
    expected[:, 2:5] = naive_rms_norm.rms_norm(parts[:, 2:5], weight, 1e-5)

    rms_norm.norm_heads(parts.numpy(), 2, 3, weight.numpy(), np.float32(1e-5))

    torch.testing.assert_close(parts, expected)


@FORMS
@pytest.mark.parametrize("tokens", [1, 63])
def test_rotation_and_write(tokens, form):
    """What an arena in bfloat16 gets is the nearest, ties to even."""
    qkv, angles = torch.randn(tokens, 7, 20), torch.randn(200, 10)
    positions, slots = torch.randperm(200)[:tokens], torch.randperm(9 * 16)[:tokens]
    cos, sin, arena = angles.cos(), angles.sin(), torch.zeros(9, 3, 2, 2, 16, 20, dtype=kind(form))
    turned = naive_rope.rotate(qkv[:, :5], cos[positions], sin[positions])
    values, block, place = qkv[:, 5:].clone(), slots // 16, slots % 16

    qkv[0, 5, :2] = values[0, 0, :2] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8])  # halfway between two of bfloat16
    args = positions.numpy(), cos.numpy(), sin.numpy(), Float32(form).held(arena), 1, slots.numpy()
    rope.rotate_and_write(qkv.numpy(), 3, *args)

    torch.testing.assert_close(qkv[:, :5], turned)
    torch.testing.assert_close(arena[block, 1, 0, :, place], turned[:, 3:].to(kind(form)))
    assert torch.equal(arena[block, 1, 1, :, place], values.to(kind(form)))


def test_auto_without_tiles_is_float32_from_the_codes_of_the_file(smollm2, prompts, sequences, oracle):
    """Greedy tokens are transformers' too, decoded from codes, since no weight is rounded."""
    codes = Runner.load(
        smollm2, block_size=16, kv_cache_bytes=64 << 20, dtype="auto", threads=1, max_length=512, instructions=PLAIN
    )
    chosen = [prompts[i] for i in (0, 3, 6, 10, 11)]

    run = sequences(codes, chosen, new_tokens=24)
    run.prefill_together(range(5))
    run.decode(range(5))

    assert codes.formats.startswith("codes: float32")
    assert codes.layout.dtype == "float32"
    for prompt, output in zip(chosen, run.outputs, strict=True):
        oracle.check(prompt, output)


@pytest.mark.parametrize(
    ("form", "asked", "kv"),
    [
        pytest.param("int8", "Auto", "bfloat16", marks=WITH_VNNI),
        pytest.param("int8", "Float32", "float32", marks=WITH_VNNI),
        pytest.param("int8-bf16", "Auto", "bfloat16", marks=[WITH_VNNI, WITH_PAIRS]),
        pytest.param("int8-avx2", "Auto", "bfloat16", marks=WITH_AVX2),
        pytest.param("int8-avx2", "Float32", "float32", marks=WITH_AVX2),
    ],
)
def test_auto_rounds_activations_and_kv_unless_asked_otherwise(smollm2, prompts, sequences, oracle, form, asked, kv):
    """Greedy tokens are transformers' wherever the choice is not close."""
    vnni = form != "int8-avx2"
    instructions = replace(PLAIN, avx512=vnni, vnni=vnni, bf16=form == "int8-bf16", avx2=True)
    int8 = Runner.load(
        smollm2,
        block_size=16,
        kv_cache_bytes=64 << 20,
        dtype="auto",
        kv_dtype=asked,
        threads=1,
        max_length=512,
        instructions=instructions,
    )
    chosen = [prompts[i] for i in (0, 3, 6, 10, 11)]

    run = sequences(int8, chosen, new_tokens=24)
    run.prefill_together(range(5))
    run.decode(range(5))

    assert int8.formats.startswith(f"{form}: float32")
    assert ("attention's products with it" in int8.formats) == (form == "int8-bf16")
    assert int8.layout.dtype == kv
    close = sum(oracle.check(prompt, output, tie=1.0) for prompt, output in zip(chosen, run.outputs, strict=True))
    assert close <= 0.1 * 5 * 24


def test_sizes_that_kernels_cannot_count_in_are_left_to_torch(smollm2):
    chosen = formats.choose("auto", PLAIN, None, smollm2.config, block_size=6)

    assert chosen.kernels == "torch"
    assert "blocks of 6 tokens are no multiple of 4" in str(chosen)
    odd = formats.choose("float32", PLAIN, None, replace(smollm2.config, head_dim=20), 16)
    assert odd.kernels == "torch"
    assert "head_dim 20 is no multiple of 32" in str(odd)
    assert formats.choose("Float32", PLAIN, None, smollm2.config, 16).kernels == "float32"


@pytest.mark.parametrize(
    ("vnni", "avx2", "kernels"), [(True, True, "int8-bf16"), (False, True, "int8-avx2"), (False, False, "codes")]
)
def test_blocks_that_are_too_small_for_tiles_are_told(smollm2, vnni, avx2, kernels):
    processor = replace(PLAIN, amx=True, vnni=vnni, bf16=vnni, avx2=avx2)
    chosen = formats.choose("auto", processor, None, smollm2.config, block_size=8)
    assert chosen.kernels == kernels
    assert "not in bfloat16 tiles, which are faster: blocks of 8 tokens are no multiple of 16" in str(chosen)
    assert "bfloat16 tiles" not in str(formats.choose("auto", replace(processor, amx=False), None, smollm2.config, 8))


@pytest.mark.parametrize(
    ("dtype", "processor", "kv", "allowed"),
    [
        ("BFloat16", PLAIN, "Float32", "Auto, bfloat16"),
        ("auto", replace(PLAIN, amx=True), "Float32", "Auto, bfloat16"),
        ("Float32", PLAIN, "Float16", "Auto, float32"),
    ],
    ids=["torch", "tiles", "no such KV"],
)
def test_kv_in_a_format_that_nothing_reads_is_refused(smollm2, dtype, processor, kv, allowed):
    chosen = formats.choose(dtype, processor, None, smollm2.config, 16)
    assert formats.with_kv(chosen, "Auto") is chosen
    with pytest.raises(UnusableFormat, match=f"KV cannot be {kv} with {chosen.name}.*allowed: {allowed}$"):
        formats.with_kv(chosen, kv)
