"""Logprobs of many prompt tokens, as bytes: a long prompt would need millions of objects.

All numbers are little-endian; machines with another byte order swap them.
"""

import math
import sys
from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

_SIZE = 4  # bytes of each number


class PromptToken(NamedTuple):
    """A prompt token's logprob and rank (1 is the likeliest), and the likeliest tokens with their logprobs, best
    first."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class PackedLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Logprobs of `len(self)` tokens, each given all tokens before it, with `alternatives` likeliest tokens each."""

    alternatives: int
    logprobs: bytes  # float32 [tokens, 1 + alternatives]: the token's own, then the likeliest tokens', best first
    token_ids: bytes  # int32 [tokens, alternatives]: the likeliest
    ranks: bytes  # int32 [tokens]

    def __len__(self) -> int:
        return len(self.ranks) // _SIZE

    def fault(self, vocabulary: int | None = None) -> str:
        """Returns the first inconsistency, or "" if the sizes and numbers are valid."""
        count, width = len(self), self.alternatives
        sizes = (_SIZE * count * (1 + width), _SIZE * count * width, _SIZE * count)
        if width < 0 or (len(self.logprobs), len(self.token_ids), len(self.ranks)) != sizes:
            return f"logprobs of {count} tokens with {width} alternatives have other sizes than these"
        if not math.isfinite(sum(_numbers("f", self.logprobs))):  # `fsum` raises on two infinities
            return "logprobs that are not finite"
        ids = _numbers("i", self.token_ids)
        if ids and (min(ids) < 0 or (vocabulary is not None and max(ids) >= vocabulary)):
            return "logprobs of tokens that are not in the vocabulary"
        return ""

    def after(self, count: int) -> "PackedLogprobs":
        """Returns the logprobs after the first `count` tokens."""
        return self._between(count, len(self)) if count else self

    def pieces(self, most: int) -> "Iterator[tuple[int, PackedLogprobs]]":
        """Yields pieces of at most `most` bytes (or one token) in order, each with the number of tokens before it."""
        step = max(1, most // (2 * _SIZE * (1 + self.alternatives)))
        for first in range(0, len(self), step):
            yield first, self._between(first, first + step)

    def _between(self, first: int, end: int) -> "PackedLogprobs":
        width, first, end = self.alternatives, _SIZE * first, _SIZE * end
        logprobs = self.logprobs[first * (1 + width) : end * (1 + width)]
        return PackedLogprobs(width, logprobs, self.token_ids[first * width : end * width], self.ranks[first:end])

    def __iter__(self) -> Iterator[PromptToken]:
        width = self.alternatives
        logprobs, ids = _numbers("f", self.logprobs), _numbers("i", self.token_ids)
        for place, rank in enumerate(_numbers("i", self.ranks)):
            first = place * (1 + width)
            best = zip(ids[place * width : (place + 1) * width], logprobs[first + 1 : first + 1 + width], strict=True)
            yield PromptToken(logprobs[first], rank, tuple(best))


def _numbers(kind: str, packed: bytes) -> "array[Any]":
    numbers = array(kind, packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
