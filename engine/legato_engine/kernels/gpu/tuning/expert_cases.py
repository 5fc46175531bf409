"""Products of mixtures of experts to time, in 16 bits: gates and ups, in blocks of each size."""

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.experts.arrange import MOST_SPANS, TOKENS, PairBlocks
from legato_engine.kernels.gpu.experts.multiply import ExpertProduct, multiply
from legato_engine.kernels.gpu.experts.weights import DenseExperts
from legato_engine.kernels.gpu.tuning.device import TuningDevice
from legato_engine.kernels.gpu.tuning.search import Case, TuningTrial
from legato_engine.kernels.routing import Gating


def multiply_experts(place: TuningDevice) -> Iterator[Case]:
    """A case for each number of rows of a block, which all products of a step share."""
    for rows in place.sizes.expert_rows:
        candidates = [
            Configuration({"PROGRAMS": 4, "TILE_K": depth, "TILE_M": rows, "TILE_N": width}, warps, stages)
            for depth, width, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3, 4))
        ]
        shape = {"rows": rows, "bits": 8 * place.sizes.dtype.itemsize}
        yield Case("multiply_experts", shape, candidates, place.seeded(partial(_trial, place, rows)))


def _trial(place: TuningDevice, rows: int, config: Configuration) -> TuningTrial:
    sizes = place.sizes
    (count, active), hidden, inner = sizes.experts, sizes.expert_hidden, sizes.expert_inner
    tokens = max(TOKENS, rows * count // active) if rows > TOKENS else TOKENS
    weights = DenseExperts(place.random(count, 2 * inner, hidden).mul_(hidden**-0.5))
    blocks = _random_blocks(place, tokens, rows)
    x, out = place.random(tokens, hidden), place.random(1, tokens * active, inner)
    product = ExpertProduct(weights, None, Gating.SILU, active)
    return TuningTrial(partial(multiply, x, product, blocks, out, config), lambda: out)


def _random_blocks(place: TuningDevice, tokens: int, rows: int) -> PairBlocks:
    """Blocks of tokens that choose their experts at random."""
    count, active = place.sizes.experts
    numbers = torch.rand(tokens, count).topk(active).indices.flatten()
    table, first = list[list[int]](), 0
    for expert, pairs in enumerate(numbers.bincount(minlength=count).tolist()):
        table += [[expert, first + done, min(rows, pairs - done)] for done in range(0, pairs, rows)]
        first += pairs
    pairs_by_expert = numbers.argsort(stable=True).to(place.device, torch.int32)
    counts = torch.zeros(MOST_SPANS, 1, dtype=torch.int32, device=place.device)
    return PairBlocks(pairs_by_expert, torch.tensor(table, dtype=torch.int32, device=place.device), counts, rows)
