"""Draws a token from a row of logits in a few passes, without sorting it. See `reference/sampling.md`."""

import numpy as np
from numba import njit, prange

from legato_engine.kernels.cpu.simd.scalar import RELAXED, exponential64, float_of_bits, fused

BINS = 1024
NEAR = np.float32(8)  # tokens at most this far below the largest are considered first
FARTHEST = np.float32(87.0)  # a token that is further below the largest has weight 0
FAR_ERROR = 0.002  # maximum relative error of `_far`: twice the error of its polynomial
ROUNDING = 1e-9  # maximum relative error of a sum of weights
LARGEST = np.float32(np.finfo(np.float32).max)


@njit(cache=True, fastmath=RELAXED)
def _scale(logits, temperature, scaled):
    """Divides logits by the temperature. Returns the largest, and True if it is finite and no logit is NaN or +inf."""
    most = np.float32(-np.inf)
    wrong = np.int32(0)
    for i in range(logits.shape[0]):
        value = logits[i] / temperature
        value = LARGEST if value > LARGEST else value
        wrong |= np.int32(not logits[i] <= LARGEST)  # NaN is not
        most = value if value > most else most
        scaled[i] = value
    return most, wrong == 0 and most > -np.inf


@njit(cache=True, fastmath=RELAXED)
def _weigh(scaled, most, weights):
    """Weights of all tokens, and their sum."""
    total = np.float64(0)
    for i in range(scaled.shape[0]):
        below = most - scaled[i]
        weights[i] = 0.0 if below > FARTHEST else exponential64(-np.float64(below))
        total += weights[i]
    return total


@njit(cache=True, fastmath=RELAXED)
def _weigh_some(scaled, most, ids, count, weights):
    """Weights of these tokens, equal to the results of `_weigh`."""
    for i in range(count):
        weights[ids[i]] = exponential64(-np.float64(most - scaled[ids[i]]))


@njit(cache=True, fastmath=RELAXED)
def _far(scaled, most, edge):
    """The approximate weight of the tokens with logits below `edge`, in float32; relative error below FAR_ERROR."""
    total = np.float64(0)
    for begin in range(0, scaled.shape[0], 1024):  # few enough for a sum in float32
        part = np.float32(0)
        for i in range(begin, min(begin + 1024, scaled.shape[0])):
            x = scaled[i] - most
            x = -FARTHEST if x < -FARTHEST else x
            power = np.int32(np.int32(fused(x, np.float32(1.44269504), np.float32(256.5))) - np.int32(256))
            rest = fused(np.float32(power), np.float32(-0.69314718), x)
            value = fused(fused(np.float32(1 / 6), rest, np.float32(0.5)), rest, np.float32(1))
            value = fused(value, rest, np.float32(1))
            value *= float_of_bits(np.uint32(np.uint32(power + np.int32(127)) << np.uint32(23)))
            part += value if scaled[i] < edge else np.float32(0)
        total += part
    return total


@njit(cache=True)
def _near(scaled, floor, ids):
    """Collects the tokens with logits of at least `floor`; returns their count."""
    count = 0
    for i in range(scaled.shape[0]):
        ids[count] = i  # overwritten by the next token unless it counts
        count += scaled[i] >= floor
    return count


@njit(cache=True)
def _bin_of(value, most, width):
    place = (most - value) / width
    return np.int64(BINS - 1) if place >= BINS - 1 else np.int64(place)  # a masked token is infinitely far


@njit(cache=True)
def _sorted_bin(scaled, ids, count, most, width, which):
    """Logits in that bin, largest first."""
    values = np.empty(count, np.float32)
    size = 0
    for i in range(count):
        value = scaled[ids[i]]
        if _bin_of(value, most, width) == which:
            values[size] = value
            size += 1
    return np.sort(values[:size])[::-1]


@njit(cache=True)
def _kth(scaled, ids, count, most, width, k):
    """The k-th largest logit."""
    held = np.zeros(BINS, np.int64)
    for i in range(count):
        held[_bin_of(scaled[ids[i]], most, width)] += 1
    before = 0
    which = 0
    while before + held[which] < k:
        before += held[which]
        which += 1
    return _sorted_bin(scaled, ids, count, most, width, which)[k - before - 1]


@njit(cache=True)
def _nucleus(scaled, weights, ids, count, most, width, floor, enough):
    """The least logit of the tokens with less weight than `enough` above them."""
    held = np.zeros(BINS, np.float64)
    for i in range(count):
        value = scaled[ids[i]]
        if value >= floor:
            held[_bin_of(value, most, width)] += weights[ids[i]]
    before = np.float64(0)
    which = 0
    while which < BINS - 1 and before + held[which] < enough:
        before += held[which]
        which += 1
    if before + held[which] < enough:  # only by rounding: all remaining tokens are needed
        return floor
    threshold = most
    for value in _sorted_bin(scaled, ids, count, most, width, which):
        if value < floor or before >= enough:
            break
        threshold = value
        before += exponential64(np.float64(value) - most)
    return threshold


@njit(cache=True)
def _weight_above(scaled, weights, floor):
    kept = np.float64(0)
    for i in range(scaled.shape[0]):
        kept += weights[i] if scaled[i] >= floor else 0.0
    return kept


@njit(cache=True)
def _weight_of(scaled, weights, floor, ids, count):
    """The weight of the tokens `ids` with logits of at least `floor`."""
    kept = np.float64(0)
    for i in range(count):
        if scaled[ids[i]] >= floor:
            kept += weights[ids[i]]
    return kept


@njit(cache=True)
def _collect(scaled, weights, most, total, top_k, top_p, ids):
    """Collects enough tokens near the largest for top-k and top-p; returns their count and their bins' width."""
    for distance in (NEAR, np.float32(20), FARTHEST):
        count = _near(scaled, most - distance, ids)
        held = _weight_of(scaled, weights, np.float32(-np.inf), ids, count)
        if (top_k and count >= top_k) or (not top_k and held >= top_p * total):
            return count, distance / np.float32(BINS)
    return _near(scaled, np.float32(-np.inf), ids), FARTHEST / np.float32(BINS)


@njit(cache=True)
def _threshold(scaled, weights, most, total, top_k, top_p, min_p, ids):
    """The least logit that may be drawn, and the count of `ids` to consider."""
    floor = most + np.float32(np.log(min_p)) if min_p > 0 else np.float32(-np.inf)
    if not top_k and top_p >= 1:
        return floor, _near(scaled, floor, ids)
    count, width = _collect(scaled, weights, most, total, top_k, top_p, ids)
    if top_k:
        floor = max(floor, _kth(scaled, ids, count, most, width, top_k))
    if top_p < 1:
        kept = total if floor == -np.inf else _weight_above(scaled, weights, floor)
        floor = max(floor, _nucleus(scaled, weights, ids, count, most, width, floor, top_p * kept))
    return floor, count


@njit(cache=True)
def _threshold_by_near(scaled, weights, most, top_k, top_p, ids):
    """The results of `_threshold` from the weights of tokens near the largest, and True if they are certain: further
    tokens matter only for top-p, by the sum of their weights, which is known approximately."""
    floor, edge, width = np.float32(-np.inf), most - NEAR, NEAR / np.float32(BINS)
    count = _near(scaled, edge, ids)
    if top_k and count < top_k:
        return floor, count, False
    _weigh_some(scaled, most, ids, count, weights)
    if top_k:
        floor = _kth(scaled, ids, count, most, width, top_k)
    if top_p >= 1:
        return floor, count, True
    held = _weight_of(scaled, weights, floor, ids, count)
    if top_k:
        return max(floor, _nucleus(scaled, weights, ids, count, most, width, floor, top_p * held)), count, True
    far = _far(scaled, most, edge)
    least, largest = (held + far * (1 - FAR_ERROR)) * (1 - ROUNDING), (held + far * (1 + FAR_ERROR)) * (1 + ROUNDING)
    if held < top_p * largest:
        return floor, count, False
    nucleus = _nucleus(scaled, weights, ids, count, most, width, floor, top_p * least)
    return nucleus, count, nucleus == _nucleus(scaled, weights, ids, count, most, width, floor, top_p * largest)


@njit(cache=True)
def _inverted(scaled, weights, floor, ids, count, number):
    """The first token at which the running sum reaches the share `number` of the whole."""
    target, sum_, last = number * _weight_of(scaled, weights, floor, ids, count), np.float64(0), 0
    for i in range(count):
        if scaled[ids[i]] >= floor and weights[ids[i]] > 0:
            last = ids[i]
            sum_ += weights[last]
            if sum_ >= target:
                return last
    return last


@njit(cache=True, parallel=True, nogil=True)
def draw(logits, rows, temperatures, top_ks, top_ps, min_ps, numbers, tokens, sound):
    """Draw i takes a token from row `rows[i]` of logits, float32 [R, vocab], with number `numbers[i]`.

    `sound` becomes True for rows with a finite largest logit and without NaN; other rows get no valid token. A top_k of
    0 is off. All but logits are [draws]: int64 rows, top_ks and tokens, float32 temperatures and min_ps, float64
    top_ps and numbers.
    """
    vocab = logits.shape[1]
    for i in prange(rows.shape[0]):
        scaled, weights = np.empty(vocab, np.float32), np.empty(vocab, np.float64)
        ids = np.empty(vocab + 1, np.int64)
        most, sound[i] = _scale(logits[rows[i]], temperatures[i], scaled)
        if sound[i]:
            top_k = top_ks[i] if top_ks[i] < vocab else 0
            floor, count, certain = most, 0, False
            if min_ps[i] <= 0 and (top_k or top_ps[i] < 1):
                floor, count, certain = _threshold_by_near(scaled, weights, most, top_k, top_ps[i], ids)
            if not certain:
                total = _weigh(scaled, most, weights)
                floor, count = _threshold(scaled, weights, most, total, top_k, top_ps[i], min_ps[i], ids)
            tokens[i] = _inverted(scaled, weights, floor, ids, count, numbers[i])


@njit(cache=True)
def _mask(row, allowed):
    for word in range((row.shape[0] + 31) // 32):
        bits = allowed[word]
        if bits == np.uint32(0xFFFFFFFF):
            continue
        first, last = 32 * word, min(32 * word + 32, row.shape[0])
        if bits == np.uint32(0):  # the most frequent case, a vectorized loop
            for token in range(first, last):
                row[token] += np.float32(-np.inf)
            continue
        for token in range(first, last):
            kept = (bits >> np.uint32(token & 31)) & np.uint32(1)
            row[token] += np.float32(0) if kept else np.float32(-np.inf)


@njit(cache=True, parallel=True, nogil=True)
def mask(logits, rows, allowed):
    """Adds minus infinity to all tokens of `logits[rows[i]]`, float32 [R, vocab], whose bit in `allowed[i]`, uint32
    [rows, words], is 0; NaN stays NaN. Rows are unique."""
    for i in prange(rows.shape[0]):
        _mask(logits[rows[i]], allowed[i])
