"""Kernels of mixtures of experts for `gpu_kernels`, with the choice of Qwen3-30B-A3B's experts."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from legato_engine.kernels.gpu.chips import has_float8
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.experts import arrange, multiply
from legato_engine.kernels.gpu.experts.combine import combine
from legato_engine.kernels.gpu.experts.route import ExpertChoice, PresentTokens, RouterColumns, route, router_splits
from legato_engine.kernels.gpu.experts.weights import CodeExperts, DenseExperts
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear.codes import CodeMatrix
from legato_engine.kernels.routing import ExpertRouting, Gating

ROUTING = ExpertRouting(128, 8)
HIDDEN, ROWS, MOST = 2048, 64, 2048  # rows of a step, and tokens of a prompt
DENSE = "bfloat16"
# Weights, and rows of a block: those of every format that take most registers, and those that decode.
PRODUCTS = (
    (DENSE, 16), (DENSE, 32), (DENSE, 64), (DENSE, 128), ("FP8, blocks", 16), ("FP8, blocks", 64),
    ("FP8, blocks", 128), ("W8A16", 128), ("Q6_K", 128), ("W4A16", 64), ("AWQ", 64), ("AWQ", 128), ("Q4_K", 128),
    ("MXFP4", 16), ("MXFP4", 64), ("MXFP4", 128),
)  # fmt: skip
FLOAT8 = (("FP8, blocks", 64), ("FP8, blocks", 128), ("FP8, channel", 128))  # with activations in FP8
EVERY_RUN = (("MXFP4", 16), ("AWQ", 128))


def cases(chip: str, whole: bool, weight: Callable[[str], CodeMatrix]) -> Iterator[tuple[str, Callable[[], None]]]:
    """Launches, each with its shape; `weight` makes one in codes."""
    for tokens in (16, MOST) if whole else (16,):
        yield f"{ROUTING.active} of {ROUTING.count} experts, {tokens} tokens", partial(_choose, chip, tokens)
    for name, rows in PRODUCTS if whole else EVERY_RUN:
        yield f"experts in {name}, {rows} rows", partial(_multiply, chip, name, rows, weight)
    for name, rows in FLOAT8 if whole and has_float8(chip) else ():
        yield f"experts and tokens in {name}, {rows} rows", partial(_multiply, chip, name, rows, weight, float8=True)


def _empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _ints(*shape: int) -> torch.Tensor:
    return _empty(*shape, dtype=torch.int32)


def _blocks(tokens: int, rows: int) -> arrange.PairBlocks:
    most = arrange.most_blocks(tokens, ROUTING.active, ROUTING.count, rows)
    counts = _ints(arrange.MOST_SPANS, ROUTING.count)
    return arrange.PairBlocks(_ints(tokens * ROUTING.active), _ints(most, arrange.FIELDS), counts, rows)


def _choose(chip: str, tokens: int) -> None:
    present = PresentTokens(_ints(ROWS + 1), ROWS)
    router = RouterColumns(_empty(ROUTING.count, HIDDEN), None, None, ROUTING)
    choice = ExpertChoice(_ints(tokens, ROUTING.active), torch.empty(tokens, ROUTING.active), None)
    splits = router_splits(HIDDEN, tokens)
    scoring = choose("score_experts", {"rows": 16 if tokens == 16 else 64}, chip)
    x, scores = _empty(tokens, HIDDEN), torch.empty(splits, tokens, ROUTING.count)
    route(x, router, present, scores, choice, _blocks(tokens, 16), scoring)
    results = torch.empty(2, tokens * ROUTING.active, HIDDEN) if tokens == 16 else _empty(1, tokens, HIDDEN)
    combine(results, choice, None, present, x, choose("combine_experts", {}, chip))


def _multiply(chip: str, name: str, rows: int, weight: Callable[[str], CodeMatrix], float8: bool = False) -> None:
    """The product of gates and ups of an expert in `weight`'s sizes."""
    if name == DENSE:
        sizes = weight("W4A16")
        experts: DenseExperts | CodeExperts = DenseExperts(_empty(1, sizes.outputs, sizes.inputs))
    else:
        matrix = weight(name)
        experts = CodeExperts(replace(matrix, codes=matrix.codes[None]))
    config = choose("multiply_experts", {"rows": rows, "bits": experts.bits, "float8": int(float8)}, chip)
    product = multiply.ExpertProduct(experts, None, Gating.SILU, ROUTING.active)
    out = _empty(1, ROWS * ROUTING.active, experts.outputs // 2)
    x: torch.Tensor | Float8Rows = _empty(ROWS, experts.inputs)
    if float8:
        scales = torch.empty(-(-experts.inputs // experts.group), ROWS)
        x = Float8Rows(_empty(ROWS, experts.inputs, dtype=torch.float8_e4m3fn), scales, experts.group)
    multiply.multiply(x, product, _blocks(ROWS, rows), out, config)
