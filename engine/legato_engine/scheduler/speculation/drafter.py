"""The interface of methods that draft tokens."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from legato_engine.scheduler.requests.request import Request


class Draft(NamedTuple):
    """Guesses at the next tokens of a sequence. `chances` are the probabilities that the model samples all tokens up to
    each of them, so they never rise."""

    tokens: Sequence[int]
    chances: Sequence[float]


NO_DRAFT = Draft((), ())


class Drafter(Protocol):
    """Drafts depend only on the sequence. They need not be good: each is verified by the model."""

    def propose(self, request: Request, most: int) -> Draft:
        """At most `most` tokens to follow all known tokens of `request`."""
        ...
