"""Whether a frame and its sequence can be served at all. What passes here cannot make a step, or a hand-off, fail for
what it says."""

import math
from array import array

from legato_protocol.stream import (
    Decode,
    Generate,
    Handoff,
    Prefill,
    SamplingParams,
    Sequence,
    unpack_tokens,
)

MAX_LOGPROBS = 64
MAX_CHOICES = 1024
_SEEDS = range(-(1 << 63), 1 << 64)
_NUMBERS = range(1 << 63)


def frame_fault(frame: Generate | Prefill | Decode | Handoff, vocab_size: int) -> str | None:
    """What is wrong with it, or None. (A peer's address that is none is nobody's: the hand-off fails as with any other
    peer that is not there.)"""
    if frame.attempt not in _NUMBERS:
        return f"attempt {frame.attempt}; allowed is 0 to {_NUMBERS[-1]}"
    if not isinstance(frame, Generate) and frame.room not in _NUMBERS:
        return f"room {frame.room}; allowed is 0 to {_NUMBERS[-1]}"
    return None if isinstance(frame, Handoff) else fault(frame.sequence, vocab_size)


def fault(sequence: Sequence, vocab_size: int) -> str | None:
    """What is wrong with it, or None."""
    tokens = array("i", unpack_tokens(sequence.token_ids))
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        return f"token ids from {min(tokens)} to {max(tokens)}; the vocabulary has 0 to {vocab_size - 1}"
    if sequence.adapter:
        return "adapters are not supported"
    if not math.isfinite(sequence.deadline):
        return f"a deadline of {sequence.deadline} seconds"
    choices = sequence.choices
    if len(choices) > MAX_CHOICES or len(set(choices)) < len(choices) or min(choices) < 0:
        return "choices must be different numbers from 0 on"
    return _params_fault(sequence.params, vocab_size)


def _params_fault(params: SamplingParams, vocab_size: int) -> str | None:
    if params.grammar:
        return "grammars are not supported"
    if params.seed not in _SEEDS:
        return "the seed does not fit in 64 bits"
    for name, least, most in _RANGES:
        value = getattr(params, name)
        if not least <= value <= most:  # also false for nan
            return f"{name} is {value}; allowed is {least} to {most}"
    if params.repetition_penalty == 0:
        return "repetition_penalty is 0; allowed is above 0"
    if params.logprobs is not None and not 0 <= params.logprobs <= min(MAX_LOGPROBS, vocab_size):
        return f"{params.logprobs} logprobs; allowed is 0 to {min(MAX_LOGPROBS, vocab_size)}"
    if not all(0 <= token < vocab_size for token in (*params.logit_bias, *params.stop_token_ids)):
        return f"logit_bias or stop_token_ids name a token outside of 0 to {vocab_size - 1}"
    if not all(math.isfinite(bias) for bias in params.logit_bias.values()):
        return "logit_bias holds a number that is not finite"
    return None


_RANGES = (
    ("max_tokens", 1, 1 << 31),
    ("temperature", 0.0, 1e4),
    ("top_k", 0, 1 << 31),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence_penalty", -100.0, 100.0),
    ("frequency_penalty", -100.0, 100.0),
    ("repetition_penalty", 0.0, 1e4),
    ("min_tokens", 0, 1 << 31),
)
