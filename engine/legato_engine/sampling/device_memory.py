"""Memory of one launch of the sampler: one copy to the device, and one copy back.

Sections begin at multiples of 16 bytes, and their sizes are padded, so that each kernel is compiled once.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from legato_engine.backends.cuda.device import Device
from legato_engine.kernels.gpu.sampling.sample import MOST_TOPS, Draws, Results

_Memory = TypeVar("_Memory", torch.Tensor, npt.NDArray[Any])

_DOUBLES = ("numbers", "top_ps")
_FLOATS = ("temperatures", "log_min_ps", "repetitions")
_INTS = ("rows", "top_ks", "tops", "changes", "restricted")
_LEAST = 4  # draws or rows
_LEAST_ENTRIES = 16


def padded(count: int, least: int = _LEAST) -> int:
    """The next power of two."""
    return max(least, 1 << max(count - 1, 0).bit_length())


class Slot:
    """Memory for one launch at a time, until it is collected."""

    def __init__(self, draws: int, device: Device) -> None:
        self._device = device
        self._sent = self._made(padded(draws) * _words())
        self._results = torch.zeros(_result_words(padded(draws)), dtype=torch.int32, device=device.place)
        self._collected = device.host(len(self._results))

    def send(
        self, columns: dict[str, npt.NDArray[Any]], entries: npt.NDArray[np.int32], rows: npt.NDArray[np.int64],
        masks: npt.NDArray[np.uint32],
    ) -> tuple[Draws, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
        """Starts one copy of all inputs to the device.

        Returns them on the device, padded: draws, entries [5, entries], rows of masks [rows] and masks [rows, words].
        `columns` are the fields of `Draws`.
        """
        draws, lines = padded(len(columns["rows"])), padded(len(rows)) if len(rows) else 0
        count = padded(entries.shape[1], _LEAST_ENTRIES)
        words = masks.shape[1]
        sizes = (draws * _words(), 5 * count, lines, lines * words)
        if sum(sizes) > len(self._sent[0]):
            self._sent = self._made(2 * sum(sizes))
        host, given = self._sent
        for_draws, for_entries, for_rows, for_masks = _split(host.numpy(), sizes)
        for name, values in _columns(for_draws).items():
            values[: len(columns["rows"])] = columns[name]
            values[len(columns["rows"]) :] = -1
        table = for_entries.reshape(5, count)
        table[:, : entries.shape[1]] = entries
        table[0, entries.shape[1] :] = -1
        for_rows[: len(rows)] = rows
        for_rows[len(rows) :] = -1
        for_masks.view(np.uint32).reshape(lines, words)[: len(rows)] = masks
        given[: sum(sizes)].copy_(host[: sum(sizes)], non_blocking=True)
        first, second, third, fourth = _split(given, sizes)
        return Draws(**_columns(first)), second.view(5, count), third, fourth.view(lines, words)

    def results(self, draws: int) -> Results:
        """The results of this many draws on the device."""
        return _results(self._results, padded(draws))

    def fetch(self, draws: int, logprobs: bool) -> Results:
        """Starts a copy of the results to the host. Returns the host's tensors, valid once it is done."""
        used = _result_words(padded(draws)) if logprobs else 2 * padded(draws)
        self._collected[:used].copy_(self._results[:used], non_blocking=True)
        return _results(self._collected, padded(draws))

    def _made(self, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._device.host(words), torch.zeros(words, dtype=torch.int32, device=self._device.place)


def _words() -> int:
    """Words of one draw."""
    return 2 * len(_DOUBLES) + len(_FLOATS) + len(_INTS)


def _result_words(draws: int) -> int:
    return (3 + 2 * MOST_TOPS) * draws


def _split(memory: _Memory, sizes: Sequence[int]) -> list[_Memory]:
    return [memory[first:last] for first, last in pairwise(accumulate(sizes, initial=0))]


def _columns(memory: _Memory) -> dict[str, _Memory]:
    draws = len(memory) // _words()
    doubles, floats, ints = _split(memory, [2 * draws * len(_DOUBLES), draws * len(_FLOATS), draws * len(_INTS)])
    kinds = (np.float64, np.float32) if isinstance(memory, np.ndarray) else (torch.float64, torch.float32)
    columns: dict[str, _Memory] = {}
    for names, values in ((_DOUBLES, doubles.view(kinds[0])), (_FLOATS, floats.view(kinds[1])), (_INTS, ints)):
        columns |= dict(zip(names, _split(values, [draws] * len(names)), strict=True))
    return columns


def _results(memory: torch.Tensor, draws: int) -> Results:
    sizes = (draws, draws, draws, draws * MOST_TOPS, draws * MOST_TOPS)
    tokens, states, logprobs, top_ids, top_logprobs = _split(memory, sizes)
    return Results(
        tokens, states, logprobs.view(torch.float32), top_ids.view(draws, MOST_TOPS),
        top_logprobs.view(torch.float32).view(draws, MOST_TOPS),
    )  # fmt: skip
