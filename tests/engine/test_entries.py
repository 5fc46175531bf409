"""Tables of what changes logits, against plain dictionaries. What a device makes of them: see test_device_sampler."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.kernels.gpu.sampling.sample import FORBIDDEN, SEEN
from legato_engine.sampling.entries import collect
from legato_engine.scheduler.batch import Draw
from legato_protocol.sampling.parameters import SamplingParams

VOCAB = 12
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=5)
NAMED = st.integers(-1, VOCAB + 1)


def reference(draw: Draw) -> dict[int, tuple[float, float, int]]:
    """By token: its bias, what frequency and presence take off it, and its marks."""
    params, output = draw.params, draw.tokens[draw.prompt_len :]
    early = len(output) < params.min_tokens
    gone = {word[0] for word in params.bad_words} | (set(params.stop_token_ids) if early else set())
    seen = set(draw.tokens) if params.repetition_penalty != 1 else set()
    said = Counter(output) if params.frequency_penalty or params.presence_penalty else Counter[int]()
    concerned = set(params.allowed_token_ids) or gone | seen | said.keys() | params.logit_bias.keys()
    drops = {token: params.frequency_penalty * count + params.presence_penalty for token, count in said.items()}
    return {
        token: (
            params.logit_bias.get(token, 0),
            drops.get(token, 0),
            SEEN * (token in seen) + FORBIDDEN * (token in gone),
        )
        for token in sorted(concerned)
        if 0 <= token < VOCAB
    }


@st.composite
def some_draw(make: st.DrawFn) -> Draw:
    """Numbers that floats hold exactly."""
    params = SamplingParams(
        max_tokens=8,
        seed=1,
        repetition_penalty=make(st.sampled_from([1.0, 1.5])),
        frequency_penalty=make(st.sampled_from([0.0, -0.5])),
        presence_penalty=make(st.sampled_from([0.0, 0.25])),
        logit_bias=make(st.dictionaries(NAMED, st.sampled_from([2.0, -4.0]), max_size=2)),
        bad_words=make(st.lists(st.tuples(NAMED), max_size=2).map(tuple)),
        allowed_token_ids=make(st.just(()) | st.lists(NAMED, max_size=3).map(tuple)),
        min_tokens=make(st.sampled_from([0, 5])),
        stop_token_ids=(2, 5),
    )
    prompt = make(TOKENS.filter(len))
    return Draw(0, 0, params, prompt + make(TOKENS), len(prompt))


@settings(deadline=None)
@given(st.lists(some_draw(), max_size=2), TOKENS)
def test_a_token_has_one_entry_with_all_that_concerns_it(draws: list[Draw], more: list[int]) -> None:
    for token in (None, *more):
        for draw in draws if token is not None else ():
            draw.tokens.append(token)  # type: ignore[attr-defined]
        table = collect(draws, VOCAB).table
        biases, drops = table[2].copy().view(np.float32), table[3].copy().view(np.float32)
        columns = (table[0], table[1], biases, drops, table[4])
        expected = [(i, token, *entry) for i, draw in enumerate(draws) for token, entry in reference(draw).items()]
        assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
