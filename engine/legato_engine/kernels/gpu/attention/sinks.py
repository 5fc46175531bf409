"""Sinks of attention: a score of each head that only the sum of weights includes."""

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def with_sinks(total, largest, sinks, head, used):
    """Returns sums of weights [lanes], relative to the largest scores, with the weights of sinks [heads], if any."""
    if sinks is not None:
        sink = tl.load(sinks + head, mask=used, other=float("-inf"))
        total += tl.math.exp2(sink * _LOG2_E - largest)
    return total
