"""The number of sequences that run on a worker at the same time, where no setting gives it. Loads no torch.

Nobody knows when a worker starts how long its sequences will be, and the maximum length says little about it: most are
far shorter. They are expected to have `EXPECTED_TOKENS`, a chat's prompt and answer. If they are longer, the KV cache
bounds them: a sequence starts only if there are blocks for it. So a number that is too high costs little, the memory of
a step's results; one that is too low leaves KV cache unused.
"""

from typing import Final

EXPECTED_TOKENS: Final = 512
FEWEST: Final = 64  # that Auto chooses, however small the cache is: short sequences, and choices of one request
MOST: Final = 1024
STEP: Final = 64


def expected_tokens(longest: int) -> int:
    """Tokens that a sequence is expected to have, of at most `longest`."""
    return min(EXPECTED_TOKENS, longest)


def max_running(kv_tokens: int, longest: int) -> int:
    """The number of sequences of the expected length that a KV cache holds: a multiple of 64, from 64 to 1024."""
    held = kv_tokens // expected_tokens(longest) // STEP * STEP
    return min(max(held, FEWEST), MOST)
