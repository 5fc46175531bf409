"""Functions that several kernels share: scaled logits of a row, their weights, and keys that order them."""

import triton
import triton.language as tl

GREEDY = tl.constexpr(0.0)  # as a temperature
LARGEST = tl.constexpr(3.4028234663852886e38)
FARTHEST = tl.constexpr(87.0)  # a token that is further below the largest has weight 0
LEVELS = tl.constexpr(8)  # distances from the largest for which tokens are counted; the last includes all candidates
LOWEST_KEY = tl.constexpr(-(2**31))  # below the key of any number


@triton.jit
def key_of(values):
    """int32 keys in the order of float32 values."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)  # -0 is 0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(keys):
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def scaled_logits(logits, stride, changed, change, row, temperature, ids, vocab):
    """Logits of `row`, or of row `change` of `changed` if that is not negative, divided by the temperature unless it is
    GREEDY."""
    inside = ids < vocab
    if change >= 0:
        scaled = tl.load(changed + change.to(tl.int64) * vocab + ids, mask=inside, other=float("-inf"))
    else:
        scaled = tl.load(logits + row.to(tl.int64) * stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    divisor = tl.where(temperature == GREEDY, 1.0, temperature)
    scaled = tl.math.div_rn(scaled, divisor)
    return tl.where(scaled > LARGEST, LARGEST, scaled)


@triton.jit
def weights_of(scaled, most):
    """float64 weights; 0 where the distance is more than FARTHEST or NaN."""
    below = most - scaled
    return tl.where(below <= FARTHEST, tl.exp(-below.to(tl.float64)), 0.0)


@triton.jit
def largest_of(maxima, draw, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.max(tl.load(maxima + draw * parts + part, mask=part < parts, other=float("-inf")), 0)


@triton.jit
def bound_of(most, floor, level):
    """The least logit of a level: 1, 3, 6, 10, … below the largest, and `floor` for the last level."""
    distance = (level + 1) * (level + 2) * 0.5
    return tl.where(level == LEVELS - 1, floor, tl.maximum(floor, most - distance))


@triton.jit
def level_of(counts, weights, draw, parts, top_k, top_p, PARTS: tl.constexpr):
    """The first level that includes all tokens kept by top-k and top-p, and the count of its tokens by part [PARTS]."""
    part = tl.arange(0, PARTS)
    level = tl.arange(0, LEVELS)
    places = (draw * parts + part[:, None]) * LEVELS + level[None, :]
    inside = (part < parts)[:, None]
    in_level = tl.load(counts + places, mask=inside, other=0)
    count = tl.sum(in_level, 0)
    weight = tl.sum(tl.load(weights + places, mask=inside, other=0.0), 0)
    last = level == LEVELS - 1
    whole = tl.sum(tl.where(last, weight, 0.0), 0)
    enough = tl.where(top_k > 0, count >= top_k, weight >= top_p * whole)
    first = tl.min(tl.where(enough | last, level, LEVELS), 0)
    return first, tl.sum(tl.where((level == first)[None, :], in_level, 0), 1)
