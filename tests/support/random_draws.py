"""Draws after one prompt with any parameters, and random logits."""

import torch
from hypothesis import strategies as st

from legato_engine.scheduler.batch import Draw
from legato_protocol.sampling.parameters import SamplingParams

PROMPT = (3, 3, 7, 11)


def params(**changes):
    return SamplingParams(**{"max_tokens": 8, "seed": 1} | changes)


def draw(output=(), choice=0, **changes):
    tokens = [*PROMPT, *output]
    return Draw(choice, len(tokens), params(**changes), tokens, len(PROMPT))


def random_logits(rows, vocab, seed=0):
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def some_draws(vocab):
    """Draws of any parameters from a vocabulary of this size, some of whose tokens are named that it does not have."""
    return st.builds(
        draw,
        st.lists(st.integers(0, min(vocab, 100) - 1), max_size=5),
        choice=st.integers(0, 3),
        seed=st.integers(0, 2**64 - 1),
        temperature=st.sampled_from([0.0, 0.2, 1.0, 1.9]),
        top_k=st.sampled_from([0, 1, 7, 600]),
        top_p=st.sampled_from([1.0, 0.95, 0.3]),
        min_p=st.sampled_from([0.0, 0.1]),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        frequency_penalty=st.sampled_from([0.0, -0.5]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        logit_bias=st.sampled_from([{}, {1: 5.0, 8: -3.0, vocab: 1.0}]),
        logprobs=st.sampled_from([None, 0, 3]),
        min_tokens=st.sampled_from([0, 5]),
        stop_token_ids=st.just((2,)),
        allowed_token_ids=st.sampled_from([(), (1, 2, 8, 9, 9, vocab)]),
        bad_words=st.sampled_from([(), ((1,), (2,), (5, 8))]),
    )
