"""The default number of sequences that run on a worker at the same time. Does not load torch.

When a worker starts, the lengths of its sequences are unknown, and most are far shorter than the maximum. They are
expected to have `EXPECTED_TOKENS`, a typical prompt and answer of a chat. Longer ones are limited by the KV cache: a
sequence starts only if there are blocks for it. So too high a number only costs the memory of a step's results, while
too low a number leaves KV cache unused.
"""

from typing import Final

EXPECTED_TOKENS: Final = 512
FEWEST: Final = 64  # also with a small cache: sequences may be short, or choices of one request
MOST: Final = 1024
STEP: Final = 64


def expected_tokens(longest: int) -> int:
    """Expected number of tokens of a sequence, at most `longest`."""
    return min(EXPECTED_TOKENS, longest)


def max_running(kv_tokens: int, longest: int) -> int:
    """Number of sequences of the expected length that a KV cache holds: a multiple of 64, from 64 to 1024."""
    held = kv_tokens // expected_tokens(longest) // STEP * STEP
    return min(max(held, FEWEST), MOST)
