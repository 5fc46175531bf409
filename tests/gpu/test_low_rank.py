"""Low-rank updates by many adapters, and adapters that are loaded while a step is computed."""

import numpy as np
import torch
from places import Place, over

from legato_engine.backends.cuda import low_rank as cuda
from legato_engine.backends.cuda.device import Cuda, Interpreted
from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.low_rank import LinearShape
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.low_rank import AdaptedRows
from legato_engine.kernels.reference import low_rank as naive
from legato_engine.layers.inputs import AdaptedTokens
from legato_engine.layers.low_rank import Pair

SIZES = {"q": 4096, "k": 1024, "v": 1000}
SMALL = {"q": 96, "k": 64, "v": 40}
SLEEP = 1 << 30  # cycles: most of a second


class Step:
    """Tokens of three adapters in turn, and of none."""

    def __init__(self, place: Place, dtype: torch.dtype, ranks: tuple[int, ...], count: int) -> None:
        sizes = SMALL if place.small else SIZES
        self.place, self.device = place, Interpreted(place.processors) if place.small else Cuda(place.device)
        self.layers = [LinearShape(tuple(sizes), tuple(sizes.values()))]
        self.inputs = 200 if place.small else 4096
        self.memory = cuda.AdapterMemory(Room(count, 1, 1, 16, len(ranks), max(ranks)), self.device, self.layers)
        self.pairs = [self.made(sizes, rank, dtype) for rank in ranks]
        self.tokens = [np.arange(index, count, len(ranks) + 1) for index in range(len(ranks))]
        self.x = place.random(count, self.inputs, dtype=dtype)
        self.before = place.random(count, sum(sizes.values()), dtype=dtype)
        chosen = choose("shrink", {}, place.chip), choose("expand", {}, place.chip)
        self.update = cuda.CudaLowRank(cuda.next_layer([], self.layers[0].outputs), *chosen)

    def made(self, sizes: dict[str, int], rank: int, dtype: torch.dtype) -> dict[str, Pair]:
        """Adapts two of the projections."""
        chosen = [*sizes.items()][rank % 2 :][:2]
        scale = self.inputs**-0.5
        return {
            name: Pair((torch.randn(rank, self.inputs) * scale).to(dtype), (torch.randn(out, rank) / 8).to(dtype))
            for name, out in chosen
        }

    def rows(self, pairs: list[dict[str, Pair]]) -> AdaptedRows:
        self.loaded = [cuda.upload(each, self.layers, self.x.dtype, self.device) for each in pairs]
        given = [AdaptedTokens(*each) for each in zip(self.loaded, self.tokens, strict=True)]
        self.memory.fill(given, len(self.x))
        return self.memory.rows(len(self.x))

    def expected(self, pairs: list[dict[str, Pair]]) -> torch.Tensor:
        out, x = self.before.cpu().float(), self.x.cpu().float()
        for adapter, tokens in zip(pairs, self.tokens, strict=True):
            first = 0
            for name, size in zip(self.layers[0].names, self.layers[0].outputs, strict=True):
                if name in adapter:
                    a, b = adapter[name].a.float(), adapter[name].b.float()
                    naive.add(x, torch.from_numpy(tokens), a, [(slice(0, len(a)), first, b)], out)
                first += size
        return out


@over(ranks=((16, 1, 64), (17, 3, 8)), count=(32, 1, 500))
def test_updates_and_their_replay_with_other_adapters(
    place: Place, dtype: torch.dtype, ranks: tuple[int, ...], count: int
) -> None:
    step = Step(place, dtype, ranks, count)
    out = step.before.clone()
    step.update(step.x, out, step.rows(step.pairs))
    place.close(out, step.expected(step.pairs))
    rows = step.rows(step.pairs)
    again = step.device.capture(lambda: step.update(step.x, out, rows))
    others = step.pairs[1:] + step.pairs[:1]
    step.rows(others)
    out.copy_(step.before)
    again()
    place.close(out, step.expected(others))


@over()
def test_an_adapter_is_loaded_while_a_step_is_computed(place: Place, dtype: torch.dtype) -> None:
    step = Step(place, dtype, (16,), 32)
    if place.small:  # nothing is computed while something else is
        return
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP)
    computed = torch.cuda.current_stream().record_event()
    adapter = cuda.upload(step.pairs[0], step.layers, dtype, step.device)
    del adapter
    assert not computed.query()
