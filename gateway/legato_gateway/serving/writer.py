"""What an API does to spell answers: `GenerationResponse` gives its writer the pieces, and sends what that makes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from legato_gateway.errors import GatewayError
from legato_gateway.prompt_scores import PromptScores
from legato_gateway.request import Delta, TokenText, Usage


@dataclass(slots=True)
class CollectedChoice:
    """One choice as far as it was collected."""

    index: int
    text: list[str] = field(default_factory=list)
    tokens: list[TokenText] = field(default_factory=list)
    finish: str | None = None
    stop: str | None = None
    stop_token: int | None = None
    scores: PromptScores | None = None
    token_ids: list[int] = field(default_factory=list)
    late: bool = False


class Writer(Protocol):
    """Spells one kind of answer."""

    def begin(self) -> bytes:
        """Events that a stream begins with before anything of the answer is known; empty once it has begun."""

    def delta(self, index: int, delta: Delta) -> bytes:
        """Events that say `delta` of choice `index`; empty where there is nothing to say yet."""

    def end(self, usage: Usage) -> bytes:
        """What a stream ends with when all was said."""

    def failed(self, error: GatewayError) -> bytes:
        """What a stream that fails ends with."""

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        """The body of an answer that is not streamed."""
