"""The kernels to time, in the shapes of models of 1 to 70 billion parameters, and their candidate configurations.

Sampling and the expansion of a step's inputs are not tuned: they take microseconds of a step.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from legato_engine.kernels.gpu.attention.made_step import MadeStep, Shape
from legato_engine.kernels.gpu.block_sums import sum_blocks
from legato_engine.kernels.gpu.configurations import Configuration, choose
from legato_engine.kernels.gpu.rms_norm import add_rms_norm
from legato_engine.kernels.gpu.rope import norm_rotate_write
from legato_engine.kernels.gpu.silu_mul import silu_mul
from legato_engine.kernels.gpu.tuning import code_cases, expert_cases
from legato_engine.kernels.gpu.tuning.device import WARPS, TuningDevice
from legato_engine.kernels.gpu.tuning.search import Case, TuningTrial

EPS = 1e-5


def all_of(place: TuningDevice, kernels: Sequence[str] = ()) -> Iterator[Case]:
    """The cases of these kernels, or of all kernels. Raises ValueError for an unknown name."""
    if unknown := set(kernels) - set(KERNELS):
        raise ValueError(f"{', '.join(sorted(unknown))}: not tuned; there are {', '.join(KERNELS)}")
    for name, cases in KERNELS.items():
        if not kernels or name in kernels:
            yield from cases(place)


def _decode_attention(place: TuningDevice) -> Iterator[Case]:
    candidates = [
        Configuration({"SHORTEST": 4, "SPLITS": splits, "TILE_M": 16, "TILE_N": tile}, warps, stages)
        for splits, tile, warps, stages in itertools.product((2, 4, 8), (32, 64, 128), (2, 4), (2, 3, 4))
    ]
    yield from _attention(place, "decode_attention", candidates, [(place.sizes.context - 1, 1)] * place.sizes.rows)


def _prefill_attention(place: TuningDevice) -> Iterator[Case]:
    candidates = [
        Configuration({"TILE_M": rows, "TILE_N": tile}, warps, stages)
        for rows, tile, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))
    ]
    yield from _attention(place, "prefill_attention", candidates, [(0, place.sizes.prompt)])


def _attention(
    place: TuningDevice, kernel: str, candidates: Sequence[Configuration], rows: Sequence[tuple[int, int]]
) -> Iterator[Case]:
    sizes = place.sizes
    for head_dim, group, block in itertools.product(sizes.head_dims, sizes.groups, sizes.block_sizes):
        shape = place.shape(head_dim, group, block)
        decode, prefill = (choose(f"{name}_attention", shape.named, place.chip) for name in ("decode", "prefill"))

        def make(
            config: Configuration,
            shape: Shape = shape,
            decode: Configuration = decode,
            prefill: Configuration = prefill,
        ) -> TuningTrial:
            chosen = (config, prefill) if kernel == "decode_attention" else (decode, config)
            step = MadeStep(shape, rows, *chosen)
            return TuningTrial(step.attend, lambda: step.out)

        yield Case(kernel, shape.named, candidates, place.seeded(make))


def _add_rms_norm(place: TuningDevice) -> Iterator[Case]:
    sizes = place.sizes
    candidates = [Configuration({"ROWS": rows}, warps) for rows, warps in itertools.product((1, 2, 4), WARPS)]

    def make(config: Configuration) -> TuningTrial:
        x, weight = place.random(sizes.tokens, sizes.hidden), place.random(sizes.hidden)
        residual, out = torch.zeros_like(x), torch.zeros_like(x)  # more launches change the residual, and not the norm
        return TuningTrial(partial(add_rms_norm, x, residual, weight, EPS, out, config), lambda: out)

    yield Case("add_rms_norm", {}, candidates, place.seeded(make))


def _norm_rotate_write(place: TuningDevice) -> Iterator[Case]:
    sizes = place.sizes
    candidates = [
        Configuration({"HEADS": heads, "TOKENS": tokens}, warps)
        for heads, tokens, warps in itertools.product((4, 8, 16), (1, 2, 4), WARPS)
    ]
    for head_dim in sizes.head_dims:
        shape = place.shape(head_dim, 4, 16)

        def make(config: Configuration, shape: Shape = shape) -> TuningTrial:
            heads, count = shape.group * shape.kv_heads, sizes.tokens
            qkv = shape.random(count, (heads + 2 * shape.kv_heads) * shape.head_dim)
            positions = torch.arange(count, device=shape.device).int()
            cos, sin = (torch.rand(count, shape.head_dim // 2, device=shape.device) for _ in range(2))
            norms = shape.random(shape.head_dim), shape.random(shape.head_dim)
            blocks = -(-count // shape.block_size)
            layer = shape.random(blocks, 2, shape.kv_heads, shape.block_size, shape.head_dim)
            return TuningTrial(
                lambda: norm_rotate_write(qkv, positions, positions, cos, sin, *norms, EPS, heads, layer, None, config),
                lambda: layer,
            )

        yield Case("norm_rotate_write", {"head_dim": head_dim}, candidates, place.seeded(make))


def _silu_mul(place: TuningDevice) -> Iterator[Case]:
    sizes = place.sizes
    candidates = [
        Configuration({"WIDTH": width}, warps) for width, warps in itertools.product((512, 1024, 2048), WARPS)
    ]

    def make(config: Configuration) -> TuningTrial:
        gate_up, out = place.random(sizes.tokens, 2 * sizes.inner), place.random(sizes.tokens, sizes.inner)
        return TuningTrial(partial(silu_mul, gate_up, out, config), lambda: out)

    yield Case("silu_mul", {}, candidates, place.seeded(make))


def _sum_blocks(place: TuningDevice) -> Iterator[Case]:
    sizes = place.sizes
    candidates = [Configuration({"TILE": tile}, warps) for tile, warps in itertools.product((2048, 4096, 8192), WARPS)]

    def make(config: Configuration) -> TuningTrial:
        words, weights = (
            torch.randint(-(1 << 62), 1 << 62, size, device=place.device)
            for size in ((sizes.blocks, sizes.words), (sizes.words,))
        )
        ids, parts = torch.randperm(sizes.blocks, device=place.device).int(), list[torch.Tensor]()

        def launch() -> None:
            parts[:] = [sum_blocks(words, ids, weights, config)]

        return TuningTrial(launch, lambda: parts[0].sum(1))

    yield Case("sum_blocks", {}, candidates, place.seeded(make))


KERNELS: dict[str, Callable[[TuningDevice], Iterator[Case]]] = {
    "decode_attention": _decode_attention,
    "prefill_attention": _prefill_attention,
    "norm_rotate_write": _norm_rotate_write,
    "add_rms_norm": _add_rms_norm,
    "silu_mul": _silu_mul,
    "sum_blocks": _sum_blocks,
    "multiply_codes": code_cases.multiply_codes,
    "dequantize_codes": code_cases.dequantize_codes,
    "quantize_rows": code_cases.quantize_rows,
    "multiply_fp8": code_cases.multiply_fp8,
    "multiply_experts": expert_cases.multiply_experts,
}
