"""The result of preparing a request. Each API has a `prepare` for each kind of body; the rest is shared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from legato_gateway.clients.api_keys import Client
from legato_gateway.errors import GatewayError
from legato_gateway.request import Delta, GenerationRequest, PromptScores, TokenText, Usage
from legato_gateway.serving.deadline import Deadline
from legato_gateway.serving.model_serving import ModelServing


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


@dataclass(frozen=True, slots=True)
class Asked:
    """A request's client, headers and deadline: everything but its body."""

    client: Client
    headers: Mapping[str, str]
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request: one relay request per prompt, and the writer of its answer."""

    requests: tuple[GenerationRequest, ...]
    writer: Writer
    stream: bool
    explain: bool
    id: str
    model: str
    id_header: bytes = b"x-request-id"  # the response header in which the API's clients look for it
    choose: Callable[[Sequence[CollectedChoice]], list[CollectedChoice]] | None = None  # selects the answers to send


Prepare = Callable[[ModelServing, Asked, bytearray], PreparedRequest]  # takes a body; raises the client's errors
