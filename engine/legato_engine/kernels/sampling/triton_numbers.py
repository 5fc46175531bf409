"""What several of the kernels compute of a row: its scaled logits, their weights, and keys to compare them by."""

import triton
import triton.language as tl

GREEDY = tl.constexpr(0.0)  # as a temperature
LARGEST = tl.constexpr(3.4028234663852886e38)
FARTHEST = tl.constexpr(87.0)  # below the largest by more than this, a token weighs nothing
LEVELS = tl.constexpr(8)  # distances from the largest at which tokens are counted; the last is all that may be drawn
LOWEST_KEY = tl.constexpr(-(2**31))  # below that of any number


@triton.jit
def key_of(values):
    """An int32 for each float32 that is ordered as they are."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)  # -0 is 0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(keys):
    return (keys ^ ((keys >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def scaled_logits(logits, stride, changed, change, row, temperature, ids, vocab):
    """Logits of `row`, or of line `change` of `changed` if it is not negative, divided by the temperature unless it is
    GREEDY."""
    inside = ids < vocab
    if change >= 0:
        found = tl.load(changed + change.to(tl.int64) * vocab + ids, mask=inside, other=float("-inf"))
    else:
        found = tl.load(logits + row.to(tl.int64) * stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    divisor = tl.where(temperature == GREEDY, 1.0, temperature)
    found = tl.math.div_rn(found, divisor)
    return tl.where(found > LARGEST, LARGEST, found)


@triton.jit
def weights_of(scaled, most):
    """float64; 0 where the distance is FARTHEST or no number."""
    below = most - scaled
    return tl.where(below <= FARTHEST, tl.exp(-below.to(tl.float64)), 0.0)


@triton.jit
def largest_of(maxima, draw, parts, PARTS: tl.constexpr):
    part = tl.arange(0, PARTS)
    return tl.max(tl.load(maxima + draw * parts + part, mask=part < parts, other=float("-inf")), 0)


@triton.jit
def bound_of(most, floor, level):
    """The least logit of a level: 1, 3, 6, 10, … below the largest, and `floor` for the last one."""
    distance = (level + 1) * (level + 2) * 0.5
    return tl.where(level == LEVELS - 1, floor, tl.maximum(floor, most - distance))


@triton.jit
def level_of(counts, weights, draw, parts, top_k, top_p, PARTS: tl.constexpr):
    """The first level that holds all that top-k and top-p keep, and how many tokens of it each part has: [PARTS]."""
    part = tl.arange(0, PARTS)
    level = tl.arange(0, LEVELS)
    places = (draw * parts + part[:, None]) * LEVELS + level[None, :]
    inside = (part < parts)[:, None]
    held = tl.load(counts + places, mask=inside, other=0)
    count = tl.sum(held, 0)
    weight = tl.sum(tl.load(weights + places, mask=inside, other=0.0), 0)
    last = level == LEVELS - 1
    whole = tl.sum(tl.where(last, weight, 0.0), 0)
    enough = tl.where(top_k > 0, count >= top_k, weight >= top_p * whole)
    found = tl.min(tl.where(enough | last, level, LEVELS), 0)
    return found, tl.sum(tl.where((level == found)[None, :], held, 0), 1)
