"""Sampling on a GPU: masks, entries that change logits, and a token of each row with its logprobs.

`reference/sampling.md` explains it. Rows are divided into parts of `TILE` tokens, so that few rows also keep a device
busy. Nothing is sorted, allocated or read back; programs of padded draws (row -1) return immediately. Tensors are
contiguous, except `logits`, float [R, vocab], whose rows may be strided.

Tiles: TILE, the tokens of a part; CHUNK, the tokens compared with PIVOTS in one pass; ENTRIES of a program.
"""

from typing import NamedTuple

import torch
import triton

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.sampling import adjust as triton_adjust
from legato_engine.kernels.gpu.sampling import draw as triton_draw
from legato_engine.kernels.gpu.sampling import rank as triton_rank
from legato_engine.kernels.gpu.sampling.numbers import LEVELS

FINE, NOT_FINITE, NOTHING_LEFT = (
    state.value for state in (triton_draw.FINE, triton_draw.NOT_FINITE, triton_draw.NOTHING_LEFT)
)
SEEN, FORBIDDEN = triton_adjust.SEEN.value, triton_adjust.FORBIDDEN.value
MOST_TOPS = 20


class Draws(NamedTuple):
    """The parameters of draws, on the device, each [draws]."""

    rows: torch.Tensor  # int32: of the logits; -1 is padding
    numbers: torch.Tensor  # float64 in (0, 1]
    top_ps: torch.Tensor  # float64; 1 is off
    temperatures: torch.Tensor  # float32; 0 is greedy
    log_min_ps: torch.Tensor  # float32; minus infinity is off
    repetitions: torch.Tensor  # float32: penalties
    top_ks: torch.Tensor  # int32; 0 is off
    tops: torch.Tensor  # int32: logprobs in addition to the token's own; -1 for no logprobs
    changes: torch.Tensor  # int32: its row in `SamplingMemory.changed`; -1 for unchanged logits
    restricted: torch.Tensor  # int32: 1 if only tokens with entries may be drawn


class Results(NamedTuple):
    """The results of draws, on the device."""

    tokens: torch.Tensor  # int32 [draws]; 0 without a token
    states: torch.Tensor  # int32 [draws]: FINE, NOT_FINITE or NOTHING_LEFT
    logprobs: torch.Tensor  # float32 [draws], if requested
    top_ids: torch.Tensor  # int32 [draws, MOST_TOPS], the likeliest first
    top_logprobs: torch.Tensor  # float32 [draws, MOST_TOPS]


class SamplingMemory:
    """Device memory for intermediate results of one step: 12 bytes for each draw and token of the vocabulary."""

    def __init__(self, draws: int, vocab: int, device: torch.device, config: Configuration) -> None:
        def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        floats, ints, parts = torch.float32, torch.int32, -(-vocab // config.tiles["TILE"])
        self.parts = parts
        self.maxima = empty(floats, draws, parts)
        self.best = empty(ints, draws, parts)
        self.given_maxima = empty(floats, draws, parts)
        self.given_sums = empty(floats, draws, parts)
        self.flaws = empty(ints, draws, parts)
        self.counts = empty(ints, draws, parts, LEVELS.value)
        self.weights = empty(torch.float64, draws, parts, LEVELS.value)
        self.bases = empty(floats, draws, 2)
        self.top_keys = empty(ints, draws, parts, MOST_TOPS)
        self.top_ids = empty(ints, draws, parts, MOST_TOPS)
        self.values = empty(floats, draws, vocab)
        self.tokens = empty(ints, draws, vocab)
        self.changed = empty(floats, draws, vocab)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in vars(self).values() if isinstance(tensor, torch.Tensor))


def mask(logits: torch.Tensor, rows: torch.Tensor, allowed: torch.Tensor, config: Configuration) -> None:
    """Adds minus infinity to all tokens of `logits[rows[i]]` whose bit in `allowed[i]`, int32 [rows, words], is 0.

    `rows`, int32 [rows], are unique; -1 is padding.
    """
    vocab, tile = logits.shape[1], config.tiles["TILE"]
    grid = (len(rows), triton.cdiv(vocab, tile))
    triton_adjust.mask_rows[grid](
        logits, logits.stride(0), rows, allowed, allowed.shape[1], vocab, TILE=tile, num_warps=config.warps
    )


def change(
    logits: torch.Tensor, draws: Draws, entries: torch.Tensor, work: SamplingMemory, config: Configuration
) -> None:
    """Writes changed rows to `work.changed`; `logits` stay as they are.

    `entries`, int32 [5, entries]: draw (-1 is padding), token, bias and the penalty for frequency and presence (bits of
    float32), and marks: SEEN, FORBIDDEN. No draw has two entries for one token.
    """
    vocab, tile, block = logits.shape[1], config.tiles["TILE"], config.tiles["ENTRIES"]
    triton_adjust.copy_rows[(len(draws.rows), work.parts)](
        logits, logits.stride(0), draws.rows, draws.changes, draws.restricted, work.changed, vocab,
        TILE=tile, num_warps=config.warps,
    )  # fmt: skip
    triton_adjust.apply_entries[(triton.cdiv(entries.shape[1], block),)](
        logits, logits.stride(0), draws.rows, draws.changes, draws.repetitions, entries, entries.shape[1],
        work.changed, vocab, ENTRIES=block, num_warps=config.warps,
    )  # fmt: skip


def pick(
    logits: torch.Tensor,
    draws: Draws,
    work: SamplingMemory,
    results: Results,
    drawn: bool,
    filtered: bool,
    config: Configuration,
) -> None:
    """Chooses the token of each draw and finds its logprob, after `change`.

    `drawn` is True if a draw is not greedy, `filtered` if one of those has a top-k or top-p.
    """
    vocab, tile = logits.shape[1], config.tiles["TILE"]
    padded = triton.next_power_of_2(work.parts)
    grid, source = (len(draws.rows), work.parts), (logits, logits.stride(0), work.changed, vocab, work.parts)
    which = (draws.rows, draws.changes, draws.temperatures)
    bounds = (draws.top_ks, draws.top_ps, draws.log_min_ps)
    triton_draw.survey[grid](
        *source, *which, draws.tops, work.maxima, work.best, work.given_maxima, work.given_sums, work.flaws,
        TILE=tile, num_warps=config.warps,
    )  # fmt: skip
    if drawn:
        triton_draw.weigh[grid](
            *source, *which, *bounds, work.maxima, work.counts, work.weights,
            TILE=tile, PARTS=padded, num_warps=config.warps,
        )  # fmt: skip
    if filtered:
        triton_draw.gather[grid](
            *source, *which, *bounds, work.maxima, work.counts, work.weights, work.values, work.tokens,
            TILE=tile, PARTS=padded, num_warps=config.warps,
        )  # fmt: skip
    triton_draw.choose[grid[:1]](
        *source, *which, *bounds, draws.numbers, draws.tops,
        work.maxima, work.best, work.given_maxima, work.given_sums, work.flaws, work.counts, work.weights,
        work.values, work.tokens, work.bases, results.tokens, results.states, results.logprobs,
        TILE=tile, PARTS=padded, CHUNK=config.tiles["CHUNK"], PIVOTS=config.tiles["PIVOTS"],
        DRAWN=drawn, FILTERED=filtered, num_warps=config.warps,
    )  # fmt: skip


def rank(logits: torch.Tensor, draws: Draws, work: SamplingMemory, results: Results, config: Configuration) -> None:
    """Finds the likeliest tokens of draws with logprobs, after `pick`. `tops` are at most the vocabulary's size."""
    common = {"MOST": MOST_TOPS, "num_warps": config.warps}
    triton_rank.rank_parts[(len(draws.rows), work.parts)](
        logits, logits.stride(0), logits.shape[1], work.parts, draws.rows, draws.tops, work.top_keys, work.top_ids,
        TILE=config.tiles["TILE"], **common,
    )  # fmt: skip
    triton_rank.rank_rows[(len(draws.rows),)](
        work.parts, draws.rows, draws.tops, results.states, work.top_keys, work.top_ids, work.bases,
        results.top_ids, results.top_logprobs, SLOTS=triton.next_power_of_2(work.parts * MOST_TOPS), **common,
    )  # fmt: skip
