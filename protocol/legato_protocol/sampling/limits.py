"""Limits of sampling parameters. The gateway refuses requests beyond them, and workers check again.

Within these ranges no parameter makes a finite logit infinite: the largest changes are a division by 0.01 (repetition
penalty) and one by 0.00001 (temperature), and float32 reaches 3e38.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

GREEDY_BELOW: Final = 1e-5  # a temperature below it, such as 0, takes the likeliest token
MAX_CHOICES: Final = 128  # of one request, over all its prompts
MAX_LOGPROBS: Final = 20  # alternatives to the sampled token
MAX_BIASES: Final = 1024  # tokens in logit_bias
MAX_STOP_TOKENS: Final = 16  # of the request, in addition to the model's own
MAX_MODEL_STOP_TOKENS: Final = 48  # of the model: most have one to five
MAX_ALLOWED_TOKENS: Final = 1024  # in allowed_token_ids
MAX_BAD_WORDS: Final = 128  # of a request
MAX_BAD_WORD_TOKENS: Final = 64  # of one bad word
BAD_WORD_SPELLINGS: Final = 2  # token sequences of a word: at the start of a text, and after a space
MAX_GRAMMAR_BYTES: Final = 1 << 18


class Interval(NamedTuple):
    """Numbers from `least` to `most`, both included. NaN is in no interval."""

    least: float
    most: float

    def allows(self, value: float) -> bool:
        return self.least <= value <= self.most

    def __str__(self) -> str:
        return f"{self.least} to {self.most}"


LARGEST_COUNT: Final = (1 << 31) - 1
SEED: Final = Interval(-(1 << 63), (1 << 64) - 1)
LOGIT_BIAS: Final = Interval(-100.0, 100.0)
RANGES: Final[Mapping[str, Interval]] = MappingProxyType(  # by the field of `SamplingParams`
    {
        "max_tokens": Interval(1, LARGEST_COUNT),
        "min_tokens": Interval(0, LARGEST_COUNT),
        "temperature": Interval(0.0, 2.0),
        "top_k": Interval(0, LARGEST_COUNT),  # 0 is off
        "top_p": Interval(0.0, 1.0),
        "min_p": Interval(0.0, 1.0),
        "presence_penalty": Interval(-2.0, 2.0),
        "frequency_penalty": Interval(-2.0, 2.0),
        "repetition_penalty": Interval(0.01, 100.0),
        "seed": SEED,
    }
)
