"""Validates frames and sequences. The content of a valid frame cannot make a step or a hand-off fail."""

import math
from array import array

from legato_protocol.sampling.limits import (
    BAD_WORD_SPELLINGS,
    LOGIT_BIAS,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_GRAMMAR_BYTES,
    MAX_LOGPROBS,
    MAX_MODEL_STOP_TOKENS,
    MAX_STOP_TOKENS,
    RANGES,
)
from legato_protocol.sampling.parameters import REASONING, SamplingParams
from legato_protocol.wire.packed_tokens import unpack_tokens
from legato_protocol.wire.stream import Decode, Generate, Handoff, Prefill, Sequence

_NUMBERS = range(1 << 63)
MAX_ADAPTER_CHARACTERS = 64


def frame_fault(frame: Generate | Prefill | Decode | Handoff, vocab_size: int) -> str | None:
    """The fault of a frame, or None. A peer's address is not checked: with an invalid one the hand-off fails."""
    if frame.attempt not in _NUMBERS:
        return f"attempt {frame.attempt}; allowed is 0 to {_NUMBERS[-1]}"
    if not isinstance(frame, Generate) and frame.room not in _NUMBERS:
        return f"room {frame.room}; allowed is 0 to {_NUMBERS[-1]}"
    return None if isinstance(frame, Handoff) else fault(frame.sequence, vocab_size)


def fault(sequence: Sequence, vocab_size: int) -> str | None:
    """The fault of a sequence, or None."""
    tokens = array("i", unpack_tokens(sequence.token_ids))
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        return f"token ids from {min(tokens)} to {max(tokens)}; the vocabulary has 0 to {vocab_size - 1}"
    if len(sequence.adapter) > MAX_ADAPTER_CHARACTERS:
        return f"adapter has {len(sequence.adapter)} characters; at most {MAX_ADAPTER_CHARACTERS} are allowed"
    if not math.isfinite(sequence.deadline):
        return f"a deadline of {sequence.deadline} seconds"
    choices = sequence.choices
    if len(choices) > MAX_CHOICES or len(set(choices)) < len(choices) or min(choices) < 0:
        return "choices must be different numbers from 0 on"
    return _params_fault(sequence.params, vocab_size)


def _params_fault(params: SamplingParams, vocab_size: int) -> str | None:
    if (size := len(params.grammar.encode(errors="replace"))) > MAX_GRAMMAR_BYTES:
        return f"grammar has {size} bytes; at most {MAX_GRAMMAR_BYTES} are allowed"
    if params.grammar and params.grammar_kind != REASONING and not params.stop_token_ids:
        return "a grammar without stop_token_ids: nothing would end the output"
    for name, interval in RANGES.items():
        value = getattr(params, name)
        if not interval.allows(value):
            return f"{name} is {value}; allowed is {interval}"
    most = min(MAX_LOGPROBS, vocab_size)
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None and not 0 <= count <= most:
            return f"{name} is {count}; allowed is 0 to {most}"
    return _bias_fault(params, vocab_size) or _stop_fault(params, vocab_size) or _words_fault(params, vocab_size)


def _bias_fault(params: SamplingParams, vocab_size: int) -> str | None:
    if len(params.logit_bias) > MAX_BIASES:
        return f"logit_bias names {len(params.logit_bias)} tokens; at most {MAX_BIASES} are allowed"
    for token, bias in params.logit_bias.items():
        if not 0 <= token < vocab_size:
            return f"logit_bias names token {token}; the vocabulary has 0 to {vocab_size - 1}"
        if not LOGIT_BIAS.allows(bias):
            return f"logit_bias of token {token} is {bias}; allowed is {LOGIT_BIAS}"
    return None


def _stop_fault(params: SamplingParams, vocab_size: int) -> str | None:
    stops = set(params.stop_token_ids)
    if any(not 0 <= token < vocab_size for token in stops):
        return f"stop_token_ids are from {min(stops)} to {max(stops)}; the vocabulary has 0 to {vocab_size - 1}"
    most = min(MAX_STOP_TOKENS + MAX_MODEL_STOP_TOKENS, vocab_size - 1)  # min_tokens masks them: one is left to sample
    if len(stops) > most:
        return f"stop_token_ids has {len(stops)} tokens; at most {most} are allowed"
    return None


def _words_fault(params: SamplingParams, vocab_size: int) -> str | None:
    allowed, words = params.allowed_token_ids, params.bad_words
    if len(allowed) > MAX_ALLOWED_TOKENS:
        return f"allowed_token_ids has {len(allowed)} tokens; at most {MAX_ALLOWED_TOKENS} are allowed"
    if len(words) > (most := MAX_BAD_WORDS * BAD_WORD_SPELLINGS):
        return f"bad_words has {len(words)} words; at most {most} are allowed"
    if any(not 1 <= len(word) <= MAX_BAD_WORD_TOKENS for word in words):
        return f"bad_words has a word of less than 1 or more than {MAX_BAD_WORD_TOKENS} tokens"
    for name, tokens in (("allowed_token_ids", allowed), ("bad_words", [token for word in words for token in word])):
        if any(not 0 <= token < vocab_size for token in tokens):
            span = f"{min(tokens)} to {max(tokens)}"
            return f"{name} has tokens from {span}; the vocabulary has 0 to {vocab_size - 1}"
    return None
