"""The ranges of sampling parameters fit the frame that carries them, and keep float32 logits finite."""

import math
import struct

from legato_protocol.sampling.limits import GREEDY_BELOW, LOGIT_BIAS, RANGES, Interval
from legato_protocol.sampling.parameters import SamplingParams

LARGEST_LOGIT = 1e6  # thousands of times what real models give
LARGEST_FLOAT32 = struct.unpack("<f", bytes.fromhex("ffff7f7f"))[0]


def test_every_number_of_the_sampling_parameters_has_a_range():
    numbers = {name for name, kind in SamplingParams.__annotations__.items() if kind in (int, float)}
    assert numbers == set(RANGES)


def test_the_defaults_are_allowed():
    params = SamplingParams(max_tokens=1, seed=0)
    assert all(limits.allows(getattr(params, name)) for name, limits in RANGES.items())


def test_the_ends_are_allowed_and_shown_and_nothing_outside():
    outside = (math.nan, math.inf, -math.inf, -0.1, 2.1)
    limits = Interval(0.0, 2.0)
    assert [limits.allows(value) for value in (0.0, 2, *outside)] == [True] * 2 + [False] * len(outside)
    assert str(limits) == "0.0 to 2.0"


def test_the_extremes_together_leave_a_logit_finite():
    repetition = RANGES["repetition_penalty"]
    factor = max(repetition.most, 1 / repetition.least)
    penalties = (RANGES["frequency_penalty"].most * RANGES["max_tokens"].most) + RANGES["presence_penalty"].most
    assert ((LARGEST_LOGIT + LOGIT_BIAS.most) * factor + penalties) / GREEDY_BELOW < LARGEST_FLOAT32
