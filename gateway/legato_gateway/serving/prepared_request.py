"""What an API makes of a request: each has a `prepare` for each of its bodies, and the rest goes alike for all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from legato_gateway.clients.client import Client
from legato_gateway.request import GenerationRequest
from legato_gateway.serving.deadline import Deadline
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.serving.writer import CollectedChoice, Writer


@dataclass(frozen=True, slots=True)
class Asked:
    """What is known of a request apart from its body: who sent it, its headers, and by when it has to end."""

    client: Client
    headers: Mapping[str, str]
    deadline: Deadline


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A checked request: one of the relay's for each prompt, and how to spell the answer."""

    requests: tuple[GenerationRequest, ...]
    writer: Writer
    stream: bool
    explain: bool
    id: str
    model: str
    id_header: bytes = b"x-request-id"  # of the response; as the API's clients look for it
    choose: Callable[[Sequence[CollectedChoice]], list[CollectedChoice]] | None = None  # which answers are told


Prepare = Callable[[ModelServing, Asked, bytearray], PreparedRequest]  # of a body; it raises what the client is told
