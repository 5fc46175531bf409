"""The interface for writing answers in an API's format. `GenerationResponse` feeds a writer and sends its output."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from legato_gateway.errors import GatewayError
from legato_gateway.prompt_scores import PromptScores
from legato_gateway.request import Delta, TokenText, Usage


@dataclass(slots=True)
class CollectedChoice:
    """The parts of one choice collected so far."""

    index: int
    text: list[str] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None
    stop_token: int | None = None
    scores: PromptScores | None = None
    token_ids: list[int] = field(default_factory=list)
    late: bool = False  # the deadline ended it


class Writer(Protocol):
    """Writes one answer in the format of one API."""

    def begin(self) -> bytes:
        """Returns a stream's first events, before any part of the answer is known; empty once it has started."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """Returns the events for `delta` of choice `index`; empty if there is nothing to send yet."""

    def end(self, usage: Usage) -> bytes:
        """Returns a stream's last events after a complete answer."""

    def failed(self, error: GatewayError) -> bytes:
        """Returns a stream's last events after a failure."""

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """Returns the body of an answer that is not streamed."""
