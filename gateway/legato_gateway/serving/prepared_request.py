"""The result of preparing a request. Each API has a `prepare` for each kind of body; the rest is shared."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from legato_gateway.clients.client import Client
from legato_gateway.request import GenerationRequest
from legato_gateway.serving.deadline import Deadline
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.serving.writer import CollectedChoice, Writer


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
