"""Resources that kernels need of each chip. Run it, and it rewrites the tables of `legato_engine/kernels/gpu/CHIPS.md`.

Everything is compiled by the functions that a worker launches it with, in the shapes of real models, and attention in a
sample of all others that are supported, which the page leaves out.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gpu_experts
import torch
from kernel_inspection import inspect

from legato_engine.backends.kv_groups import of_layer
from legato_engine.kernels.gpu import ahead, low_rank
from legato_engine.kernels.gpu.all_reduce import add_ranks
from legato_engine.kernels.gpu.attention import attend as attention
from legato_engine.kernels.gpu.block_sums import sum_blocks
from legato_engine.kernels.gpu.chips import has_float8
from legato_engine.kernels.gpu.configurations import choose, triton_minor
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear import fp8
from legato_engine.kernels.gpu.linear.codes import CodeKind, CodeMatrix, GroupScales, unit_of
from legato_engine.kernels.gpu.linear.multiply import dequantize, multiply, parts_needed
from legato_engine.kernels.gpu.rms_norm import add_rms_norm
from legato_engine.kernels.gpu.rope import norm_rotate_write
from legato_engine.kernels.gpu.sampling import sample as sampling
from legato_engine.kernels.gpu.silu_mul import silu_mul
from legato_engine.kernels.gpu.step_inputs import expand

PAGE = Path(__file__).parents[2] / "engine" / "legato_engine" / "kernels" / "gpu" / "CHIPS.md"
BEGIN, END = "<!-- begin generated -->\n", "<!-- end generated -->\n"
DTYPE = torch.bfloat16
KV_HEADS, TOKENS, ROWS, BLOCKS = 2, 256, 16, 64
HIDDEN, INNER, VOCAB, EPS = 4096, 14336, 128256, 1e-5
RANKS = 64
WORDS = 1 << 18  # of 64 bits, in a block of 2 MiB
SHOWN = {"TILE_M", "TILE_N", "ROWS", "TOKENS", "HEADS", "WIDTH", "TILE", "CHUNK", "ENTRIES"}
HEAD = (
    "| kernel | shape | configuration | registers | spilled bytes | shared bytes | products | tiles in flight |",
    "| --- | --- | --- | ---: | ---: | ---: | --- | ---: |",
)


class Shape(NamedTuple):
    """A shape of attention. `window` makes a loop more of prompts; with `e4m3`, KV is converted in registers."""

    head_dim: int
    group: int
    block_size: int
    dtype: str = "bfloat16"
    window: int | None = None
    e4m3: bool = False
    sinks: bool = False

    def __str__(self) -> str:
        rest = [self.dtype] * (self.dtype != "bfloat16") + [f"window {self.window}"] * (self.window is not None)
        rest += ["KV in e4m3"] * self.e4m3 + ["sinks"] * self.sinks
        shape = [f"head_dim {self.head_dim}", f"group {self.group}", f"blocks of {self.block_size}", *rest]
        return ", ".join(shape)


ATTENTION = (
    Shape(64, 3, 16), Shape(128, 4, 16), Shape(128, 8, 64), Shape(256, 4, 32), Shape(128, 8, 64, e4m3=True),
    Shape(256, 4, 32, e4m3=True),
)  # fmt: skip
# A shape takes 4 s to compile. So each chip has one with all that adds registers (the largest group, the smallest
# blocks, a window, sinks) and one with the least, both with heads that are padded.
SAMPLE = {
    "sm_80": (Shape(160, 16, 16, "float16", 4096, sinks=True), Shape(96, 1, 32)),
    "sm_89": (Shape(192, 16, 16, "bfloat16", 4096, sinks=True), Shape(80, 1, 64, "float16")),
    "sm_90": (Shape(192, 16, 16, "float16", 4096, sinks=True), Shape(80, 1, 64)),
    "sm_100": (Shape(160, 16, 16, "bfloat16", 4096, sinks=True), Shape(96, 1, 32, "float16")),
}
WEIGHTS = {  # kind, inputs that share a scale, zero points or minima
    "W4A16": (CodeKind.INT4, 128, ""),
    "AWQ": (CodeKind.INT4, 128, "zeros"),
    "Q4_K": (CodeKind.INT4, 32, "minima"),
    "W8A8": (CodeKind.INT8, HIDDEN, ""),
    "FP8, blocks": (CodeKind.FLOAT8, 128, ""),
    "FP8, channel": (CodeKind.FLOAT8, HIDDEN, ""),
    "MXFP4": (CodeKind.FLOAT4, 32, ""),
    "W8A16": (CodeKind.INT8, 64, "zeros"),
    "Q6_K": (CodeKind.INT8, 16, ""),
}
FLOAT8 = ("FP8, blocks", "FP8, channel")
CODES = (("AWQ", 16), ("AWQ", 32), *((name, 64) for name in [*WEIGHTS][:7]), ("Q4_K", 32), ("FP8, blocks", 32))
ATTENTION_AND_PRODUCTS = "sm_89"  # but for less shared memory, which other kernels need little of, it is like sm_80
# Compiled in every run: on one chip, a shape of the page, all other kernels, and the shape with most registers.
EVERY_RUN = {"sm_90": ATTENTION[2]}
Described = dict[str, Any]
Launch = Callable[[], None]


def described(chips: Sequence[str], whole: bool = True) -> list[Described]:
    """The page's kernels for these chips, in their order; without `whole`, those of every run."""
    chips = chips if whole else [*EVERY_RUN]
    return [each for chip in chips for shape, launch in _cases(chip, whole) for each in _of_case(chip, shape, launch)]


def sampled(chips: Sequence[str], whole: bool = True) -> list[Described]:
    """Attention for these chips, in the sample's shapes."""
    found = [(chip, shape) for chip in chips for shape in SAMPLE[chip]]
    found = found if whole else [(chip, SAMPLE[chip][0]) for chip in EVERY_RUN]
    return [each for chip, shape in found for each in _of_case(chip, str(shape), partial(attend, chip, shape))]


def all_described(chips: Sequence[str], whole: bool) -> list[list[Described]]:
    return [described(chips, whole), sampled(chips, whole)]


def _of_case(chip: str, shape: str, launch: Launch) -> Iterator[Described]:
    with ahead.launches(chip) as launches:
        launch()
    for each in launches:
        sizes = {name: value for name, value in each.scalars.items() if name in SHOWN}
        yield {
            "chip": chip,
            "kernel": each.kernel + (" (prompts)" if each.scalars.get("FULL_TILES") else ""),
            "shape": shape,
            "sizes": sizes,
            "warps": each.warps,
            "stages": each.stages,
            **inspect(each)._asdict(),
        }


def _cases(chip: str, whole: bool) -> Iterator[tuple[str, Launch]]:
    for shape in ATTENTION if whole else (EVERY_RUN[chip],):
        yield str(shape), partial(attend, chip, shape)
    for name, rows in CODES if whole else CODES[:1]:
        yield f"{name}, {rows} rows", partial(_multiply_codes, chip, name, rows)
    if has_float8(chip):
        for name in FLOAT8:
            yield name, partial(_multiply_fp8, chip, name)
    yield from gpu_experts.cases(chip, whole, _weight)
    if chip == ATTENTION_AND_PRODUCTS:
        return
    residual, weight = empty(TOKENS, HIDDEN), empty(HIDDEN)
    yield (
        f"hidden {HIDDEN}",
        partial(add_rms_norm, residual, residual, weight, EPS, residual, choose("add_rms_norm", {}, chip)),
    )
    yield "head_dim 128", partial(_rotate, chip, 128, False)
    yield "head_dim 128, KV in e4m3", partial(_rotate, chip, 128, True)
    yield "blocks of 16", partial(_expand, chip)
    yield f"vocabulary {VOCAB}", partial(_sample, chip)
    yield (
        f"inner {INNER}",
        partial(silu_mul, empty(TOKENS, 2 * INNER), empty(TOKENS, INNER), choose("silu_mul", {}, chip)),
    )
    yield f"{HIDDEN} inputs, ranks up to {RANKS}", partial(_low_rank, chip)
    yield "Q4_K", partial(dequantize, _weight("Q4_K"), 0, empty(HIDDEN, HIDDEN), choose("dequantize_codes", {}, chip))
    words = torch.empty(BLOCKS, WORDS, dtype=torch.int64)
    yield f"blocks of {WORDS} words", partial(sum_blocks, words, ints(ROWS), words[0], choose("sum_blocks", {}, chip))
    for ranks in (2, 4, 8):
        of_ranks, counters = words[0, :ranks], ints(ROWS)
        chosen = choose("add_ranks", {}, chip)
        yield f"{ranks} ranks", partial(add_ranks, empty(1, HIDDEN), of_ranks, of_ranks, counters, 1, chosen)


def attend(chip: str, shape: Shape) -> None:
    """The plan of a step and a layer's attention, of decoding rows and of prompts."""
    head_dim, group, block_size, window = shape.head_dim, shape.group, shape.block_size, shape.window
    named = {"head_dim": head_dim, "block_size": block_size, "group": group, "kv_bits": 8 if shape.e4m3 else 16}
    dtype, heads = getattr(torch, shape.dtype), KV_HEADS * group
    decode, prefill = (choose(f"{name}_attention", named, chip) for name in ("decode", "prefill"))
    sizes = attention.AttentionSizes(heads, KV_HEADS, head_dim, block_size)
    work = attention.Work(ROWS, TOKENS, sizes, "cpu", ahead.CHIPS[chip].processors)
    qkv, out = empty(TOKENS, heads + 2 * KV_HEADS, head_dim, dtype=dtype), empty(TOKENS, heads, head_dim, dtype=dtype)
    starts, lengths, tables = ints(ROWS + 1), ints(ROWS), ints(ROWS, BLOCKS)
    attention.plan(starts, lengths, work, window, decode, prefill)
    held, scales = dtype, None
    if shape.e4m3:
        held, scales = torch.float8_e4m3fn if has_float8(chip) else torch.uint8, torch.empty(2, KV_HEADS)
    attention.attend(
        qkv[:, :heads], _layer(head_dim, block_size, held), starts, lengths, tables, work, window, out, decode,
        prefill, True, scales, torch.empty(heads) if shape.sinks else None,
    )  # fmt: skip


def _rotate(chip: str, head_dim: int, e4m3: bool) -> None:
    qkv, angles, heads = empty(TOKENS, 6 * KV_HEADS * head_dim), torch.empty(4096, head_dim // 2), 4 * KV_HEADS
    norm, chosen = empty(head_dim), choose("norm_rotate_write", {"head_dim": head_dim}, chip)
    held, factors = (torch.float8_e4m3fn, torch.empty(2, KV_HEADS)) if e4m3 else (DTYPE, None)
    layer, given = _layer(head_dim, 16, held), ints(TOKENS)
    norm_rotate_write(qkv, given, given, angles, angles, norm, norm, EPS, heads, layer, factors, chosen)


def _expand(chip: str) -> None:
    given = ints(TOKENS)
    starts, lengths, tables = ints(ROWS + 1), ints(ROWS), ints(2, ROWS, BLOCKS)
    slots, chosen = ints(2, TOKENS), choose("step_inputs", {}, chip)
    expand(given, starts, lengths, tables, ints(ROWS), given, given, slots, 16, chosen)


def _sample(chip: str) -> None:
    """Everything that a step may do with logits."""
    chosen, logits = choose("sampling", {}, chip), torch.empty(ROWS, VOCAB)
    work = sampling.SamplingMemory(ROWS, VOCAB, torch.device("cpu"), chosen)
    wide, floats = torch.empty(ROWS, dtype=torch.float64), torch.empty(ROWS)
    numbers = ints(ROWS)
    draws = sampling.Draws(numbers, wide, wide, floats, floats, floats, numbers, numbers, numbers, numbers)
    tops = ints(ROWS, sampling.MOST_TOPS)
    results = sampling.Results(numbers, numbers, floats, tops, tops.float())
    sampling.mask(logits, numbers, ints(ROWS, VOCAB // 32), chosen)
    sampling.change(logits, draws, ints(5, 256), work, chosen)
    sampling.pick(logits, draws, work, results, True, True, chosen)
    sampling.rank(logits, draws, work, results, chosen)


def _low_rank(chip: str) -> None:
    tiles = torch.empty(low_rank.most_tiles(ROWS, 8), low_rank.FIELDS, dtype=torch.int64)
    rows = low_rank.AdaptedRows(ints(ROWS), tiles, torch.empty(1), RANKS, ahead.CHIPS[chip].processors)
    layer, x = low_rank.LowRankLayer(0, 3, HIDDEN, True), empty(ROWS, HIDDEN)
    low_rank.add(x, x, layer, rows, choose("shrink", {}, chip), choose("expand", {}, chip))


def _weight(name: str) -> CodeMatrix:
    kind, group, least = WEIGHTS[name]
    groups, unit = HIDDEN // group, unit_of(kind, HIDDEN, group)
    shape = (HIDDEN // (2 * unit), HIDDEN, unit) if kind.paired else (HIDDEN, HIDDEN)
    codes = empty(*shape, dtype=torch.int8 if kind is CodeKind.INT8 else torch.uint8)
    scale = GroupScales(empty(groups, HIDDEN, dtype=torch.float32 if kind is CodeKind.FLOAT8 else torch.float16))
    if kind is CodeKind.FLOAT4:
        scale = GroupScales(empty(groups, HIDDEN, dtype=torch.uint8))
    if least == "minima":
        factors = empty(groups // 8, HIDDEN, dtype=torch.float16)
        scale = GroupScales(empty(groups, HIDDEN, dtype=torch.int8), factors)
    zeros = empty(groups, HIDDEN, dtype=torch.int8) if least == "zeros" else None
    zero = 8 if kind is CodeKind.INT4 and least != "minima" else 0
    return CodeMatrix(kind, codes, HIDDEN, HIDDEN, group, scale, zero, zeros, scale if least == "minima" else None)


def _multiply_codes(chip: str, name: str, rows: int) -> None:
    weight, x = _weight(name), empty(rows, HIDDEN)
    processors = ahead.CHIPS[chip].processors if rows == 16 else 1  # with one, inputs are not split
    config = choose("multiply_codes", {"rows": rows, "bits": weight.bits}, chip)
    multiply(x, weight, None, x, torch.empty(parts_needed(rows, processors, config)), processors, config)


def _multiply_fp8(chip: str, name: str) -> None:
    weight, x = _weight(name), empty(TOKENS, HIDDEN)
    given = _rounded(HIDDEN, weight.group)
    fp8.quantize_rows(x, given, choose("quantize_rows", {}, chip))
    fp8.multiply_fp8(given, weight, None, x, choose("multiply_fp8", {}, chip))
    norm, gated = empty(HIDDEN), _rounded(INNER, INNER if weight.group == HIDDEN else weight.group)
    add_rms_norm(x, x, norm, EPS, x, choose("add_rms_norm", {}, chip), rounded=given)
    silu_mul(empty(TOKENS, 2 * INNER), empty(TOKENS, INNER), choose("silu_mul", {}, chip), gated)


def _rounded(width: int, group: int) -> Float8Rows:
    return Float8Rows(empty(TOKENS, width, dtype=torch.float8_e4m3fn), torch.empty(width // group, TOKENS), group)


def _layer(head_dim: int, block_size: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    """A layer of an arena with two."""
    return of_layer(empty(BLOCKS, KV_HEADS, 2, 2, block_size, head_dim, dtype=dtype), 0)


def empty(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def ints(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32)


def tables(found: Sequence[Described]) -> str:
    """The text of the page between its marks."""
    parts = [f"{BEGIN}\nTriton {triton_minor()}, {str(DTYPE).removeprefix('torch.')}.\n"]
    for chip, kernels in itertools.groupby(found, lambda each: each["chip"]):
        parts += [f"\n### {chip}\n", *HEAD, *map(_line, kernels)]
    return "\n".join(parts) + f"\n\n{END}"


def _line(kernel: Described) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in kernel["sizes"].items())
    stages = f"{kernel['stages']} stages" if kernel["stages"] > 1 else "1 stage"
    chosen = ", ".join(filter(None, (sizes, f"{kernel['warps']} warps", stages)))
    cells = [
        f"`{kernel['kernel']}`", kernel["shape"], chosen, kernel["registers"], kernel["spilled"],
        f"{kernel['shared']:,}", kernel["products"], kernel["tiles"] or "",
    ]  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def page() -> tuple[str, str, str]:
    """The text before the tables, the tables, and the text after them."""
    before, rest = PAGE.read_text().split(BEGIN)
    inside, after = rest.split(END)
    return before, f"{BEGIN}{inside}{END}", after


if __name__ == "__main__":
    before, _, after = page()
    PAGE.write_text(before + tables(described(list(ahead.CHIPS))) + after)
