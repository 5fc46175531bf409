"""Choosing a token of each row: three kernels pass over all parts of all rows, the last one combines the parts."""

import triton
import triton.language as tl

from legato_engine.kernels.gpu.sampling.numbers import (
    GREEDY,
    LEVELS,
    bound_of,
    key_of,
    largest_of,
    level_of,
    scaled_logits,
    weights_of,
)

FINE = tl.constexpr(0)  # states of a draw
NOT_FINITE = tl.constexpr(1)
NOTHING_LEFT = tl.constexpr(2)
_NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def survey(
    logits, stride, changed, vocab, parts, rows, changes, temperatures, tops,
    maxima, best, given_maxima, given_sums, flaws, TILE: tl.constexpr,
):  # fmt: skip
    """For each part: the largest scaled logit and its token, a flag for logits that are NaN or infinite, and of the
    logits as given the largest and the sum of the exponentials."""
    draw, part = tl.program_id(0), tl.program_id(1)
    row = tl.load(rows + draw)
    if row >= 0:
        ids = part * TILE + tl.arange(0, TILE)
        place = draw * parts + part
        inside = ids < vocab
        given = tl.load(logits + row.to(tl.int64) * stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
        flaw = (given != given) | (given == float("inf"))
        tl.store(flaws + place, tl.max(flaw.to(tl.int32), 0))
        given_most = tl.max(given, 0)
        tl.store(given_maxima + place, given_most)
        if tl.load(tops + draw) >= 0:
            base = tl.where(given_most == float("-inf"), 0.0, given_most)
            tl.store(given_sums + place, tl.sum(tl.exp(given - base), 0))
        temperature, change = tl.load(temperatures + draw), tl.load(changes + draw)
        scaled = scaled_logits(logits, stride, changed, change, row, temperature, ids, vocab)
        most = tl.max(scaled, 0)
        tl.store(maxima + place, most)
        tl.store(best + place, tl.min(tl.where(scaled == most, ids, _NO_TOKEN), 0))


@triton.jit
def weigh(
    logits, stride, changed, vocab, parts, rows, changes, temperatures, top_ks, top_ps, log_min_ps,
    maxima, counts, weights, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """For each part: the count and the weight of the tokens within each level."""
    draw, part = tl.program_id(0), tl.program_id(1)
    row, temperature = tl.load(rows + draw), tl.load(temperatures + draw)
    if (row >= 0) & (temperature != GREEDY):
        ids = part * TILE + tl.arange(0, TILE)
        scaled = scaled_logits(logits, stride, changed, tl.load(changes + draw), row, temperature, ids, vocab)
        most = largest_of(maxima, draw, parts, PARTS)
        weight = weights_of(scaled, most)
        floor = most + tl.load(log_min_ps + draw)
        filtered = (tl.load(top_ks + draw) > 0) | (tl.load(top_ps + draw) < 1)
        place = (draw * parts + part) * LEVELS
        for level in range(tl.where(filtered, 0, LEVELS - 1), LEVELS):
            kept = (scaled >= bound_of(most, floor, level)) & (weight > 0)
            tl.store(counts + place + level, tl.sum(kept.to(tl.int32), 0))
            tl.store(weights + place + level, tl.sum(tl.where(kept, weight, 0.0), 0))


@triton.jit
def gather(
    logits, stride, changed, vocab, parts, rows, changes, temperatures, top_ks, top_ps, log_min_ps,
    maxima, counts, weights, values, tokens, TILE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Gathers the tokens of the first level with enough of them for top-k and top-p, in the order of their ids."""
    draw, part = tl.program_id(0), tl.program_id(1)
    row, temperature = tl.load(rows + draw), tl.load(temperatures + draw)
    top_k, top_p = tl.load(top_ks + draw), tl.load(top_ps + draw)
    if (row >= 0) & (temperature != GREEDY) & ((top_k > 0) | (top_p < 1)):
        level, in_level = level_of(counts, weights, draw, parts, top_k, top_p, PARTS)
        before = tl.sum(tl.where(tl.arange(0, PARTS) < part, in_level, 0), 0)
        ids = part * TILE + tl.arange(0, TILE)
        scaled = scaled_logits(logits, stride, changed, tl.load(changes + draw), row, temperature, ids, vocab)
        most = largest_of(maxima, draw, parts, PARTS)
        bound = bound_of(most, most + tl.load(log_min_ps + draw), level)
        kept = (scaled >= bound) & (weights_of(scaled, most) > 0)
        place = draw.to(tl.int64) * vocab + before + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(values + place, scaled, mask=kept)
        tl.store(tokens + place, ids, mask=kept)


@triton.jit
def choose(
    logits, stride, changed, vocab, parts, rows, changes, temperatures, top_ks, top_ps, log_min_ps, numbers, tops,
    maxima, best, given_maxima, given_sums, flaws, counts, weights, values, tokens, bases,
    chosen, states, logprobs,
    TILE: tl.constexpr, PARTS: tl.constexpr, CHUNK: tl.constexpr, PIVOTS: tl.constexpr,
    DRAWN: tl.constexpr, FILTERED: tl.constexpr,
):  # fmt: skip
    """Writes the token of each draw, its state, and its logprob."""
    draw = tl.program_id(0)
    row, temperature, change = tl.load(rows + draw), tl.load(temperatures + draw), tl.load(changes + draw)
    token, state = 0, FINE
    if row >= 0:
        part = tl.arange(0, PARTS)
        flawed = tl.max(tl.load(flaws + draw * parts + part, mask=part < parts, other=0), 0) != 0
        given_most = largest_of(given_maxima, draw, parts, PARTS)
        most = largest_of(maxima, draw, parts, PARTS)
        nothing = tl.where(change >= 0, NOTHING_LEFT, NOT_FINITE)
        state = tl.where(most == float("-inf"), nothing, FINE)
        state = tl.where(flawed | (given_most == float("-inf")), NOT_FINITE, state)
        if state == FINE:
            if temperature == GREEDY:
                token = _likeliest(maxima, best, most, draw, parts, PARTS)
            elif DRAWN:
                top_k, top_p, number = tl.load(top_ks + draw), tl.load(top_ps + draw), tl.load(numbers + draw)
                if (top_k > 0) | (top_p < 1):
                    if FILTERED:
                        level, in_level = level_of(counts, weights, draw, parts, top_k, top_p, PARTS)
                        floor = most + tl.load(log_min_ps + draw)
                        lowest = key_of(bound_of(most, floor, level)).to(tl.int64)
                        whole = _last_level(weights, draw, parts, PARTS)
                        at = draw.to(tl.int64) * vocab
                        token = _filtered(
                            values + at, tokens + at, tl.sum(in_level, 0), most, lowest, tl.sum(whole, 0),
                            top_k, top_p, number, CHUNK, PIVOTS,
                        )  # fmt: skip
                else:
                    shares = _last_level(weights, draw, parts, PARTS)
                    running = tl.cumsum(shares, 0)
                    target = number * tl.max(running, 0)
                    reached = tl.min(tl.where((running >= target) & (shares > 0), part, PARTS - 1), 0)
                    before = tl.max(tl.where(part < reached, running, 0.0), 0)
                    ids = reached * TILE + tl.arange(0, TILE)
                    scaled = scaled_logits(logits, stride, changed, change, row, temperature, ids, vocab)
                    weight = weights_of(scaled, most)
                    weight = tl.where(scaled >= most + tl.load(log_min_ps + draw), weight, 0.0)
                    token = _reached(weight, ids, before, target)
            if tl.load(tops + draw) >= 0:
                largest = tl.load(given_maxima + draw * parts + part, mask=part < parts, other=float("-inf"))
                sums = tl.load(given_sums + draw * parts + part, mask=part < parts, other=0.0)
                log_sum = tl.log(tl.sum(sums * tl.exp(largest - given_most), 0))
                tl.store(bases + 2 * draw, given_most)
                tl.store(bases + 2 * draw + 1, log_sum)
                own = tl.load(logits + row.to(tl.int64) * stride + token).to(tl.float32)
                tl.store(logprobs + draw, own - given_most - log_sum)
    tl.store(chosen + draw, token)
    tl.store(states + draw, state)


@triton.jit
def _likeliest(maxima, best, most, draw, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    values = tl.load(maxima + draw * parts + part, mask=part < parts, other=float("-inf"))
    ids = tl.load(best + draw * parts + part, mask=part < parts, other=_NO_TOKEN)
    return tl.min(tl.where(values == most, ids, _NO_TOKEN), 0)


@triton.jit
def _last_level(weights, draw, parts, PARTS: tl.constexpr):
    """The weight of all candidates in each part."""
    part = tl.arange(0, PARTS)
    return tl.load(weights + (draw * parts + part) * LEVELS + LEVELS - 1, mask=part < parts, other=0.0)


@triton.jit
def _reached(weight, ids, before, target):
    """The first token at which the running sum reaches the target; the last token if rounding keeps it below."""
    running = before + tl.cumsum(weight, 0)
    first = tl.min(tl.where((running >= target) & (weight > 0), ids, _NO_TOKEN), 0)
    return tl.where(first == _NO_TOKEN, tl.max(tl.where(weight > 0, ids, 0), 0), first)


@triton.jit
def _filtered(
    values, tokens, count, most, lowest, whole, top_k, top_p, number, CHUNK: tl.constexpr, PIVOTS: tl.constexpr
):
    """A token of the `count` gathered ones, all of which have keys of at least `lowest`."""
    highest = key_of(most).to(tl.int64)
    kept = whole
    if top_k > 0:
        lowest = _threshold(values, count, most, lowest, highest, top_k.to(tl.float64), False, CHUNK, PIVOTS)
        kept = _kept(values, count, most, lowest, CHUNK)
    if top_p < 1:
        lowest = _threshold(values, count, most, lowest, highest, top_p * kept, True, CHUNK, PIVOTS)
    target = number * _kept(values, count, most, lowest, CHUNK)
    place = tl.arange(0, CHUNK)
    start, before, token, last = 0, target * 0, -1, 0
    while (start < count) & (token < 0):
        inside = start + place < count
        scaled = tl.load(values + start + place, mask=inside, other=float("-inf"))
        ids = tl.load(tokens + start + place, mask=inside, other=0)
        weight = tl.where(inside & (key_of(scaled) >= lowest), weights_of(scaled, most), 0.0)
        running = before + tl.cumsum(weight, 0)
        first = tl.min(tl.where((running >= target) & (weight > 0), ids, _NO_TOKEN), 0)
        token = tl.where(first == _NO_TOKEN, -1, first)
        last = tl.maximum(last, tl.max(tl.where(weight > 0, ids, 0), 0))
        before += tl.sum(weight, 0)
        start += CHUNK
    return tl.where(token < 0, last, token)


@triton.jit
def _kept(values, count, most, lowest, CHUNK: tl.constexpr):
    """The weight of the gathered tokens with keys of at least `lowest`."""
    place = tl.arange(0, CHUNK)
    total = tl.zeros([CHUNK], tl.float64)
    for start in range(0, count, CHUNK):
        inside = start + place < count
        scaled = tl.load(values + start + place, mask=inside, other=float("-inf"))
        total += tl.where(inside & (key_of(scaled) >= lowest), weights_of(scaled, most), 0.0)
    return tl.sum(total, 0)


@triton.jit
def _threshold(
    values, count, most, lowest, highest, limit, WEIGHTS: tl.constexpr, CHUNK: tl.constexpr, PIVOTS: tl.constexpr
):
    """The least key from `lowest` to `highest` with fewer tokens above it, or less weight, than `limit`. Each pass
    divides the interval by PIVOTS pivots."""
    place, pivot = tl.arange(0, CHUNK), tl.arange(0, PIVOTS)
    while lowest < highest:
        cuts = lowest + (highest - lowest) * (pivot + 1) // (PIVOTS + 1)
        above = tl.zeros([PIVOTS], tl.float64)
        for start in range(0, count, CHUNK):
            inside = start + place < count
            scaled = tl.load(values + start + place, mask=inside, other=float("-inf"))
            beyond = inside[:, None] & (key_of(scaled)[:, None] > cuts.to(tl.int32)[None, :])
            if WEIGHTS:
                above += tl.sum(tl.where(beyond, weights_of(scaled, most)[:, None], 0.0), 0)
            else:
                above += tl.sum(beyond.to(tl.int32), 0).to(tl.float64)
        fits = above < limit
        highest = tl.min(tl.where(fits, cuts, highest), 0)
        lowest = tl.max(tl.where(fits, lowest, cuts + 1), 0)
    return lowest
