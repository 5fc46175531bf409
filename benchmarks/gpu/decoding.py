"""Sequences that decode as in a worker: a step is launched behind the one before and reads the tokens that this one
drew on the device, and then these are fetched.

Not part of it is what only a worker has: the scheduler, grammars, and the sending of tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from made_model import MadeModel, Row

from legato_engine.backends.cuda.device import Device
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.sampling import sample as sampling
from legato_engine.kernels.gpu.sampling.sample import Draws, Results, SamplingMemory
from legato_engine.layers.low_rank import LowRankAdapter

Forward = Callable[[list[Row], torch.Tensor], torch.Tensor]


class Decoding:
    """`count` sequences of `context` tokens, greedy; every step overwrites the KV of their last token. With `prompt`,
    each step also computes this row, which does not sample."""

    def __init__(
        self, model: MadeModel, device: Device, count: int, context: int, eager: bool = False, prompt: Row | None = None
    ) -> None:
        self.count = count
        self.adapters: Sequence[LowRankAdapter | None] = (None,)  # which sequences use in turn
        self._prompt = [] if prompt is None else [prompt]
        self._device = device
        self._forward: Forward = model.eager if eager else model.step
        held = -(-context // model.block_size)
        self._tables = [list(range(row * held, (row + 1) * held)) for row in range(count)]
        self._context = context
        self._draws = _greedy(count, device.place)
        vocab = model.model.config.vocab_size
        self._config = choose("sampling", {"vocab": vocab}, device.chip)
        if device.place.type == "cpu":  # interpreted: a small vocabulary is several tiles, too
            self._config = replace(self._config, tiles={"TILE": 128, "CHUNK": 64, "PIVOTS": 8, "ENTRIES": 16})
        self._work = SamplingMemory(count, vocab, device.place, self._config)
        self._results = [_results(count, device.place) for _ in range(2)]
        self._fetched = [device.host(count) for _ in range(2)]
        self._waits: list[Callable[[], None] | None] = [None, None]
        self._turn = 0  # of two memories for what a step draws: one step is under way while the next is launched

    def step(self) -> list[int]:
        """Launches one and fetches the tokens of the one before; none after the first."""
        self.launch()
        return self._collect(1 - self._turn)

    def launch(self) -> None:
        before, self._turn = self._results[self._turn], 1 - self._turn
        rows = [
            Row([-1 - row], self._context - 1, self._tables[row], adapter=self.adapters[row % len(self.adapters)])
            for row in range(self.count)
        ]
        logits = self._forward([*rows, *self._prompt], before.tokens)[: self.count]
        results = self._results[self._turn]
        sampling.pick(logits, self._draws, self._work, results, drawn=False, filtered=False, config=self._config)
        self._fetched[self._turn].copy_(results.tokens, non_blocking=True)
        self._waits[self._turn] = self._device.mark()

    def _collect(self, turn: int) -> list[int]:
        wait, self._waits[turn] = self._waits[turn], None
        if wait is None:
            return []
        wait()
        return [int(token) for token in self._fetched[turn].tolist()]


def _greedy(count: int, place: torch.device) -> Draws:
    def all_of(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((count,), value, dtype=dtype, device=place)

    return Draws(
        rows=torch.arange(count, dtype=torch.int32, device=place),
        numbers=all_of(1, torch.float64),
        top_ps=all_of(1, torch.float64),
        temperatures=all_of(0, torch.float32),
        log_min_ps=all_of(-torch.inf, torch.float32),
        repetitions=all_of(1, torch.float32),
        top_ks=all_of(0, torch.int32),
        tops=all_of(-1, torch.int32),
        changes=all_of(-1, torch.int32),
        restricted=all_of(0, torch.int32),
    )


def _results(count: int, place: torch.device) -> Results:
    tokens = torch.zeros(count, dtype=torch.int32, device=place)
    tops = torch.zeros(count, sampling.MOST_TOPS, dtype=torch.int32, device=place)
    return Results(tokens, tokens.clone(), tokens.float(), tops, tops.float())
