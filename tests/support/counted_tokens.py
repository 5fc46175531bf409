"""Counts that penalties follow from, counted anew, and tokens that know which of them were read."""

from collections import Counter
from collections.abc import Sequence

from legato_engine.scheduler.batch import Draw


def check_counts(draw: Draw) -> None:
    """The counts of the draw are those of its tokens; with the prompt where its seed is even."""
    with_prompt = draw.params.seed % 2 == 0
    ids, outputs = draw.counts.follow(draw.tokens, draw.prompt_len, with_prompt)
    expected = Counter(draw.tokens[draw.prompt_len :])
    expected.update(dict.fromkeys(draw.tokens if with_prompt else (), 0))
    assert list(zip(ids, outputs, strict=True)) == sorted(expected.items())


class WatchedTokens(Sequence[int]):
    """`read` are the places that were looked at."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens)
        self.read: set[int] = set()

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, at):  # type: ignore[no-untyped-def]
        places = range(len(self))[at]
        self.read |= set(places) if isinstance(places, range) else {places}
        return self._tokens[at]

    def append(self, token: int) -> None:
        self._tokens.append(token)
