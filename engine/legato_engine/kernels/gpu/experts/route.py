"""The choice of each token's experts in Triton. The maths is in `reference/experts.md`."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.experts.arrange import MOST_SPANS, TOKENS, PairBlocks, arrange, arrange_alone
from legato_engine.kernels.routing import ExpertRouting, Scoring

_LEAST = tl.constexpr(-3e38)  # above -inf, which marks experts that cannot be chosen
MOST_SPLITS = 8  # of the inputs of a router
_LEAST_INPUTS = 128  # of a split
FEW = 64  # tokens whose product with a router leaves a chip idle without more splits


@dataclass(frozen=True, slots=True)
class RouterColumns:
    """The router: a column for each expert, and one more if a shared expert has a weight."""

    weight: torch.Tensor  # [columns, hidden], of the activations' dtype or float32
    bias: torch.Tensor | None  # float32 [experts]
    correction: torch.Tensor | None  # float32 [experts], of scores
    routing: ExpertRouting

    @property
    def shares(self) -> bool:
        """True if a column is the weight of a shared expert."""
        return len(self.weight) > self.routing.count

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


class ExpertChoice(NamedTuple):
    """The experts of each token, best first, and their weights."""

    numbers: torch.Tensor  # int32 [tokens, active]
    weights: torch.Tensor  # float32 [tokens, active]
    shared: torch.Tensor | None  # float32 [tokens], weight of the shared expert


class PresentTokens(NamedTuple):
    """The number of tokens, known only to the device: `starts[rows]`. Tokens after them pad the step."""

    starts: torch.Tensor  # int32
    rows: int


@triton.jit(do_not_specialize=["tokens", "steps_of_split"])
def _score(
    x,  # [tokens, inputs]
    weight,  # [columns, inputs]
    out,  # float32 [splits, tokens, columns]
    tokens,
    inputs,
    columns,
    steps_of_split,
    x_stride,
    EVEN: tl.constexpr,  # no tile has inputs beyond the weight
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    n = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    k = tl.arange(0, TILE_K)
    within = (row < tokens)[:, None]
    begin = tl.program_id(2) * steps_of_split * TILE_K
    from_x = x + row.to(tl.int64)[:, None] * x_stride + k[None, :]
    from_weight = weight + tl.minimum(n, columns - 1)[None, :] * inputs + k[:, None]
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for first in tl.range(begin, tl.minimum(begin + steps_of_split * TILE_K, inputs), TILE_K):
        present = first + k < inputs
        tile = tl.load(from_x + first, mask=within if EVEN else within & present[None, :], other=0.0)
        by = tl.load(from_weight + first) if EVEN else tl.load(from_weight + first, mask=present[:, None], other=0.0)
        sums = tl.dot(tile.to(by.dtype), by, sums, input_precision="ieee")
    to = out + (tl.program_id(2) * tokens + row).to(tl.int64)[:, None] * columns + n[None, :]
    tl.store(to, sums, mask=within & (n < columns)[None, :])


@triton.jit
def _logits(scores, bias, token, column, within, real, tokens, COLUMNS: tl.constexpr, SPLITS: tl.constexpr):
    """The sums of all splits, plus the bias: [TOKENS, WIDTH]."""
    logits = tl.zeros([token.shape[0], column.shape[0]], tl.float32)
    at = scores + token.to(tl.int64)[:, None] * COLUMNS + column[None, :]
    for split in tl.static_range(SPLITS):
        logits += tl.load(at + split * tokens * COLUMNS, mask=within[:, None] & real[None, :], other=0.0)
    if bias is not None:
        logits += tl.load(bias + column, mask=real, other=0.0)[None, :]
    return logits


@triton.jit
def _scores(logits, real, SIGMOID: tl.constexpr):
    """The sigmoids or softmaxes of logits [TOKENS, WIDTH]."""
    if SIGMOID:
        scores = 1 / (1 + tl.exp(-logits))
    else:
        logits = tl.where(real[None, :], logits, float("-inf"))
        scores = tl.exp(logits - tl.max(logits, 1)[:, None])
        scores /= tl.sum(scores, 1)[:, None]
    return scores


@triton.jit
def _ranks(scores, correction, column, real, EXPERTS: tl.constexpr, GROUPS: tl.constexpr, ACTIVE_GROUPS: tl.constexpr):
    """Numbers whose largest are chosen. NaN counts as the largest; experts that cannot be chosen have -inf."""
    ranks = scores
    if correction is not None:
        ranks += tl.load(correction + column, mask=real, other=0.0)[None, :]
    ranks = tl.where(ranks == ranks, tl.maximum(ranks, _LEAST), float("inf"))
    ranks = tl.where(real[None, :], ranks, float("-inf"))
    if GROUPS > 1:
        group = column // (EXPERTS // GROUPS)
        WIDTH: tl.constexpr = triton.next_power_of_2(GROUPS)
        place = tl.arange(0, WIDTH)[None, :]
        sums = tl.full([scores.shape[0], WIDTH], float("-inf"), tl.float32)
        for index in tl.static_range(GROUPS):
            members = tl.where((group == index)[None, :], ranks, float("-inf"))
            best = tl.argmax(members, 1)
            second = tl.max(tl.where(column[None, :] == best[:, None], float("-inf"), members), 1)
            sums = tl.where(place == index, (tl.max(members, 1) + second)[:, None], sums)
        allowed = tl.zeros(scores.shape, tl.int1)
        for _ in tl.static_range(ACTIVE_GROUPS):
            best = tl.argmax(sums, 1)[:, None]
            allowed = allowed | (group[None, :] == best)
            sums = tl.where(place == best, float("-inf"), sums)
        ranks = tl.where(allowed, ranks, float("-inf"))
    return ranks


@triton.jit
def _choose(ranks, scores, column, ACTIVE: tl.constexpr, SLOTS: tl.constexpr):
    """The experts with the largest ranks, of equal ones the first: their numbers and scores [TOKENS, SLOTS], and by
    expert its place among the token's, else -1, [TOKENS, WIDTH]."""
    slot = tl.arange(0, SLOTS)[None, :]
    numbers = tl.zeros([scores.shape[0], SLOTS], tl.int32)
    values = tl.zeros([scores.shape[0], SLOTS], tl.float32)
    places = tl.full(scores.shape, -1, tl.int32)
    for index in tl.static_range(ACTIVE):
        best = tl.argmax(ranks, 1)[:, None]
        hit = column[None, :] == best
        numbers = tl.where(slot == index, best, numbers)
        values = tl.where(slot == index, tl.sum(tl.where(hit, scores, 0.0), 1)[:, None], values)
        places = tl.where(hit, index, places)
        ranks = tl.where(hit, float("-inf"), ranks)
    return numbers, values, places


@triton.jit(do_not_specialize=["tokens", "rows", "tiles_of_span", "most_blocks"])
def _route(
    scores,  # [SPLITS, tokens, COLUMNS]
    bias,
    correction,
    starts,
    numbers,  # [tokens, ACTIVE]
    weights,  # [tokens, ACTIVE]
    shared,  # [tokens], or None
    counts,  # [spans, WIDTH], or None: this is the only span
    pairs,  # [tokens · ACTIVE]
    blocks,  # [most_blocks, 3]
    tokens,
    rows,
    tiles_of_span,
    most_blocks,
    SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EXPERTS: tl.constexpr,
    ACTIVE: tl.constexpr,
    SLOTS: tl.constexpr,  # ACTIVE, padded to a power of two
    SIGMOID: tl.constexpr,
    NORMALIZE: tl.constexpr,
    SCALE: tl.constexpr,
    GROUPS: tl.constexpr,
    ACTIVE_GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,  # EXPERTS, padded to a power of two
    TOKENS: tl.constexpr,
    TILE_M: tl.constexpr,
):
    column, slot = tl.arange(0, WIDTH), tl.arange(0, SLOTS)
    real = column < EXPERTS
    present = tl.load(starts + rows)
    totals = tl.zeros([WIDTH], tl.int32)
    for tile in tl.range(0, tiles_of_span):
        token = (tl.program_id(0) * tiles_of_span + tile) * TOKENS + tl.arange(0, TOKENS)
        within = token < present
        logits = _logits(scores, bias, token, column, within, real, tokens, COLUMNS, SPLITS)
        all_scores = _scores(logits, real, SIGMOID)
        ranks = _ranks(all_scores, correction, column, real, EXPERTS, GROUPS, ACTIVE_GROUPS)
        chosen, values, places = _choose(ranks, all_scores, column, ACTIVE, SLOTS)
        if NORMALIZE:
            values /= tl.sum(values, 1)[:, None]
        at = token.to(tl.int64)[:, None] * ACTIVE + slot[None, :]
        stored = within[:, None] & (slot < ACTIVE)[None, :]
        tl.store(numbers + at, chosen, mask=stored)
        tl.store(weights + at, values * SCALE, mask=stored)
        if shared is not None:
            last = tl.full([1], EXPERTS, tl.int32)
            weight = tl.sum(_logits(scores, None, token, last, within, last >= 0, tokens, COLUMNS, SPLITS), 1)
            tl.store(shared + token, 1 / (1 + tl.exp(-weight)), mask=within)
        places = tl.where(within[:, None], places, -1)
        totals += tl.sum((places >= 0).to(tl.int32), 0)
        if counts is None:
            arrange_alone(pairs, blocks, places, totals, token, most_blocks, ACTIVE, TILE_M)
    if counts is not None:
        tl.store(counts + tl.program_id(0) * WIDTH + column, totals)


def router_splits(inputs: int, tokens: int) -> int:
    """The parts that inputs of the router are split into: a power of two. They depend on the number of tokens in one
    place only, because kernels are compiled for each number."""
    most = min(MOST_SPLITS if tokens <= FEW else MOST_SPLITS // 2, inputs // _LEAST_INPUTS)
    return 1 << most.bit_length() - 1 if most else 1


def route(
    x: torch.Tensor, router: RouterColumns, present: PresentTokens, scores: torch.Tensor, choice: ExpertChoice,
    blocks: PairBlocks, config: Configuration,
) -> None:  # fmt: skip
    """Chooses the experts of each token of x [tokens, hidden], and sorts them into `blocks`.

    scores, float32 [splits, tokens, columns], is memory for logits. Padding gets no experts, and its choice is not
    written. Tiles: TILE_M, TILE_N, TILE_K of the product that scores.
    """
    (tokens, inputs), (count, _, columns), routing = x.shape, scores.shape, router.routing
    steps = triton.cdiv(inputs, config.tiles["TILE_K"])
    grid = triton.cdiv(tokens, config.tiles["TILE_M"]), triton.cdiv(columns, config.tiles["TILE_N"]), count
    _score[grid](
        x, router.weight, scores, tokens, inputs, columns, triton.cdiv(steps, count), x.stride(0),
        EVEN=not inputs % config.tiles["TILE_K"], **config.options,
    )  # fmt: skip
    tiles = triton.cdiv(tokens, TOKENS)
    of_span = triton.cdiv(tiles, MOST_SPANS)
    spans = triton.cdiv(tiles, of_span)
    _route[(spans,)](
        scores, router.bias, router.correction, present.starts, choice.numbers, choice.weights, choice.shared,
        None if spans == 1 else blocks.counts, blocks.pairs, blocks.table, tokens, present.rows, of_span,
        len(blocks.table), SPLITS=count, COLUMNS=columns, EXPERTS=routing.count, ACTIVE=routing.active,
        SLOTS=triton.next_power_of_2(routing.active), SIGMOID=routing.scoring is Scoring.SIGMOID,
        NORMALIZE=routing.normalize, SCALE=routing.scale, GROUPS=routing.groups, ACTIVE_GROUPS=routing.active_groups,
        WIDTH=triton.next_power_of_2(routing.count), TOKENS=TOKENS, TILE_M=blocks.rows, num_warps=8,
    )  # fmt: skip
    if spans > 1:
        arrange(choice.numbers, present.starts, present.rows, blocks, routing.count, spans, of_span)
