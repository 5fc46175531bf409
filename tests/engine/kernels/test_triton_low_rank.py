"""Low-rank updates in Triton equal those of the readable twin, whatever ranks and rows adapters have."""

import numpy as np
import pytest
import torch

from legato_engine.backends.cuda import low_rank as cuda
from legato_engine.backends.cuda.device import Interpreted
from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.low_rank import LinearShape
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.reference import low_rank as naive
from legato_engine.layers.inputs import AdaptedTokens
from legato_engine.layers.low_rank import Pair

INPUTS = 300
LAYERS = [LinearShape(("o",), (48,)), LinearShape(("q", "k", "v"), (96, 33, 20)), LinearShape(("up", "down"), (64, 16))]
CONFIGURATIONS = Configuration({"TILE_K": 32}), Configuration({"TILE_N": 32})


def made(ranks):
    """A rank for each projection of an adapter, or none."""
    sizes = {name: size for layer in LAYERS for name, size in zip(layer.names, layer.outputs, strict=True)}
    return {name: Pair(torch.randn(r, INPUTS) / 17, torch.randn(sizes[name], r)) for name, r in ranks.items()}


def updated(adapters, tokens, count, x, processors=4, most=8):
    """The outputs of all layers for `count` tokens; `tokens` are those of each adapter."""
    device = Interpreted(processors)
    memory = cuda.AdapterMemory(Room(count, 1, 1, 16, most, 64), device, LAYERS)
    loaded = [cuda.upload(pairs, LAYERS, x.dtype, device) for pairs in adapters]
    given = [AdaptedTokens(each, np.array(of, np.int64)) for each, of in zip(loaded, tokens, strict=True)]
    memory.fill(given, count)
    rows = memory.rows(count)
    outs = [torch.ones(count, sum(layer.outputs), dtype=x.dtype) for layer in LAYERS]
    for index, (layer, out) in enumerate(zip(LAYERS, outs, strict=True)):
        cuda.CudaLowRank(cuda.next_layer(LAYERS[:index], layer.outputs), *CONFIGURATIONS)(x, out, rows)
    return outs


def expected(adapters, tokens, count, x):
    outs = [torch.ones(count, sum(layer.outputs)) for layer in LAYERS]
    for pairs, of in zip(adapters, tokens, strict=True):
        for layer, out in zip(LAYERS, outs, strict=True):
            first = 0
            for name, size in zip(layer.names, layer.outputs, strict=True):
                if pair := pairs.get(name):
                    ups = [(slice(0, len(pair.a)), first, pair.b)]
                    naive.add(x.float(), torch.tensor(of, dtype=torch.int64), pair.a, ups, out)
                first += size
    return outs


CASES = {
    "one token": ([{"q": 16}], [[0]], 1),
    "awkward ranks": ([{"q": 1, "v": 17}, {"k": 3, "o": 64, "down": 20}], [[0, 3, 4], [1, 6]], 9),
    "all tokens of one": ([{"q": 16, "k": 16, "v": 16, "o": 16}], [list(range(40))], 40),
    "more than a tile, and others": ([{"up": 5}, {}, {"up": 8, "q": 4}], [list(range(0, 50, 2)), [1], [3, 5]], 52),
    "no tokens": ([{"q": 4}], [[]], 4),
    "no adapters": ([], [], 3),
}


@pytest.mark.parametrize("processors", [1, 64])  # with one, inputs are not split
@pytest.mark.parametrize("case", CASES)
def test_updates_of_many_adapters(case, processors):
    ranks, tokens, count = CASES[case]
    x, adapters = torch.randn(count, INPUTS), [made(each) for each in ranks]
    found = updated(adapters, tokens, count, x, processors)
    for one, other in zip(found, expected(adapters, tokens, count, x), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_a_token_does_not_depend_on_others_even_if_they_are_not_finite():
    ranks, tokens, count = CASES["awkward ranks"]
    x, adapters = torch.randn(count, INPUTS), [made(each) for each in ranks]
    clean = updated(adapters, tokens, count, x)
    x[[0, 2, 6]] = torch.nan
    for one, other in zip(updated(adapters, tokens, count, x), clean, strict=True):
        assert torch.equal(one[[1, 3, 4, 5, 7, 8]], other[[1, 3, 4, 5, 7, 8]])
