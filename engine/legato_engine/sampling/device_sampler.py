"""Sampling on a GPU: the tokens, faults and logprobs of `sampler.sample`, asynchronously.

`launch` starts everything; tokens stay on the device, where the next step can read them. `collect` waits for them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from legato_engine.backends.cuda.compiling import compiling
from legato_engine.backends.cuda.device import Device
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.sampling import sample as by_triton
from legato_engine.kernels.gpu.sampling.sample import MOST_TOPS, Results, SamplingMemory
from legato_engine.sampling import constrain, entries
from legato_engine.sampling.constrain import Masks
from legato_engine.sampling.device_memory import Slot
from legato_engine.sampling.sampler import LEAST_LOGPROB, NOT_FINITE, NOTHING_LEFT, is_greedy
from legato_engine.sampling.uniform import uniform
from legato_engine.scheduler.batch import Draw, Sampled
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.stream import TokenLogprobs, TopLogprob

_FAULTS = {by_triton.FINE: "", by_triton.NOT_FINITE: NOT_FINITE, by_triton.NOTHING_LEFT: NOTHING_LEFT}


class Part(NamedTuple):
    """Draws of one launch that are sampled together."""

    draws: Sequence[Draw]
    tops: Sequence[int]  # number of top logprobs of each in addition to the token's own; -1: no logprobs
    slot: Slot
    results: Results
    fetched: Results  # the same on the host, once all is done


class PendingSamples(NamedTuple):
    """Tokens of a launch that is not collected yet."""

    parts: Sequence[Part]
    wait: Callable[[], None]

    @property
    def sampled(self) -> torch.Tensor:
        """The token of each draw, 0 for a fault: int32 [draws] on the device.

        Only work that is started before this is collected, and before the next launch, may read it.
        """
        tokens = [part.results.tokens[: len(part.draws)] for part in self.parts]
        return tokens[0] if len(tokens) == 1 else torch.cat(tokens)


class DeviceSampler:
    """Samples from logits on `device`. It has memory for `batch` draws, and samples more in several batches."""

    def __init__(self, device: Device, vocab: int, batch: int) -> None:
        self._device = device
        self._vocab = vocab
        self._batch = batch
        self._config = choose("sampling", {"vocab": vocab}, device.chip)
        self._work = SamplingMemory(batch, vocab, device.place, self._config)
        self._free: list[Slot] = []

    def launch(self, logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int], masks: Masks) -> PendingSamples:
        """Starts to sample one token for each draw: draw i from row `rows[i]` of `logits` (float32 [R, vocab]).

        `masks` are applied to `logits` in place, which are not changed otherwise; work that is started afterwards may
        overwrite them. Faults of `masks` are ignored. Raises KernelFailed.
        """
        lines, bits = constrain.pack(masks)
        parts = []
        for first in range(0, len(draws), self._batch):
            piece = slice(first, first + self._batch)
            with compiling(self._device.chip):
                parts.append(self._launch(logits, draws[piece], rows[piece], lines, bits))
            lines, bits = lines[:0], bits[:0]
        return PendingSamples(parts, self._device.mark())

    def warm_up(self) -> None:
        """Compiles or loads every kernel. Raises KernelFailed."""
        logits = torch.zeros(1, self._vocab, device=self._device.place)
        everything: Masks = {0: b"\xff" * (4 * -(-self._vocab // 32))}
        plain = SamplingParams(max_tokens=1, seed=0)
        kinds = (
            replace(plain, temperature=0.0, logprobs=1),
            replace(plain, logit_bias={0: 0.0}),
            replace(plain, top_p=0.9),
        )
        for params in kinds:
            self.collect(self.launch(logits, [Draw(0, 1, params, [0], 1)], [0], everything))

    def collect(self, pending: PendingSamples) -> list[Sampled]:
        """Waits for a launch and returns its tokens. Call once for each launch."""
        pending.wait()
        sampled = [one for part in pending.parts for one in _sampled(part)]
        self._free += [part.slot for part in pending.parts]
        return sampled

    def _launch(
        self, logits: torch.Tensor, draws: Sequence[Draw], rows: Sequence[int], lines: npt.NDArray[np.int64],
        bits: npt.NDArray[np.uint32],
    ) -> Part:  # fmt: skip
        slot = self._free.pop() if self._free else Slot(self._batch, self._device)
        table, changes = entries.collect(draws, self._vocab)
        columns = self._columns(draws, rows, changes)
        given, on_device, masked, allowed = slot.send(columns, table, lines, bits)
        results, drawn = slot.results(len(draws)), columns["temperatures"] > 0
        filtered = drawn & ((columns["top_ks"] > 0) | (columns["top_ps"] < 1))
        if len(masked):
            by_triton.mask(logits, masked, allowed, self._config)
        if max(changes) >= 0:
            by_triton.change(logits, given, on_device, self._work, self._config)
        by_triton.pick(logits, given, self._work, results, bool(drawn.any()), bool(filtered.any()), self._config)
        tops = columns["tops"].tolist()
        if max(tops) > 0:
            by_triton.rank(logits, given, self._work, results, self._config)
        return Part(draws, tops, slot, results, slot.fetch(len(draws), max(tops) >= 0))

    def _columns(
        self, draws: Sequence[Draw], rows: Sequence[int], changes: Sequence[int]
    ) -> dict[str, npt.NDArray[Any]]:
        """The fields of `kernels.gpu.sampling.sample.Draws`."""
        params = [draw.params for draw in draws]
        temperatures = np.array([0.0 if is_greedy(p) else p.temperature for p in params], np.float32)
        with np.errstate(divide="ignore"):  # log(0) is -inf: no threshold
            log_min_ps = np.log(np.array([p.min_p for p in params], np.float32))
        return {
            "rows": np.array(rows, np.int32),
            "numbers": uniform(draws) if temperatures.any() else np.ones(len(draws)),
            "top_ps": np.array([p.top_p for p in params], np.float64),
            "temperatures": temperatures,
            "log_min_ps": log_min_ps,
            "repetitions": np.array([p.repetition_penalty for p in params], np.float32),
            "top_ks": np.array([p.top_k if 0 < p.top_k < self._vocab else 0 for p in params], np.int32),
            "tops": np.array([self._tops(p) for p in params], np.int32),
            "changes": np.array(changes, np.int32),
            "restricted": np.array([bool(p.allowed_token_ids) for p in params], np.int32),
        }

    def _tops(self, params: SamplingParams) -> int:
        return -1 if params.logprobs is None else min(params.logprobs, MOST_TOPS, self._vocab)


def _sampled(part: Part) -> list[Sampled]:
    fetched, count = part.fetched, len(part.draws)
    tokens, states = fetched.tokens[:count].tolist(), fetched.states[:count].tolist()
    sampled = [Sampled(token, None, _FAULTS[state]) for token, state in zip(tokens, states, strict=True)]
    for index, count in enumerate(part.tops):
        if count >= 0 and not sampled[index].fault:
            sampled[index] = Sampled(tokens[index], _logprobs(fetched, index, count))
    return sampled


def _logprobs(fetched: Results, index: int, count: int) -> TokenLogprobs:
    ids, values = fetched.top_ids[index, :count].tolist(), fetched.top_logprobs[index, :count].tolist()
    top = [TopLogprob(token, max(value, LEAST_LOGPROB)) for token, value in zip(ids, values, strict=True)]
    return TokenLogprobs(max(fetched.logprobs[index].item(), LEAST_LOGPROB), tuple(top))
