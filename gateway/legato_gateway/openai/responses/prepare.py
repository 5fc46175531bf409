"""`POST /v1/responses`: from its body to a request of the relay, and to the writer of its answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai import chat, unsupported
from legato_gateway.openai.responses import as_chat, head, items
from legato_gateway.openai.responses import body as body_of
from legato_gateway.openai.responses.body import ResponsesBody
from legato_gateway.openai.responses.items import Input
from legato_gateway.openai.responses.output import item_id
from legato_gateway.openai.responses.writer import ResponseWriter
from legato_gateway.request import GenerationRequest
from legato_gateway.serving import bodies
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.serving.prepared_request import Asked

_INPUT = msgspec.json.Decoder(Input)
_INSTRUCTIONS = msgspec.json.Decoder(str | None)


@dataclass(frozen=True, slots=True)
class CheckedResponse:
    """A request that was checked. `kept` are its items as JSON, where the response is to be stored."""

    request: GenerationRequest
    writer: ResponseWriter
    stream: bool
    kept: bytes | None


def prepare(
    serving: ModelServing, asked: Asked, raw: bytearray, stores: bool = False, before: Sequence[bytes] | None = None
) -> CheckedResponse:
    """Checks and tokenizes, as for a chat. `stores`: responses may be kept. `before` are the turns, as JSON, that the
    request goes on from, where what it names as the previous response was found. Raises what the client is told."""
    body = bodies.parse(ResponsesBody, raw)
    served = serving.check_model(body.model)
    body_of.check(body)
    _check_previous(body, stores, before is not None)
    text, effort, metadata = body_of.text(body), body_of.effort(body), body_of.metadata(body)
    kept = body_of.may_be_stored(body) and stores
    with as_chat.told_as_here():
        spelled = as_chat.chat_body(body, text, effort)
        unsupported.check_chat(spelled)
    instructions, input = _instructions(body), bodies.decode(_INPUT, body.input, "input")
    talk = items.conversation(instructions, items.decoded(before or ()), input)
    id = item_id("resp")
    with as_chat.told_as_here(talk.places):
        checked = chat.chat_request(serving, asked, id, spelled, talk.messages)
    known = head.fields(id, served, body, instructions, text, effort, metadata, kept, checked.request.params)
    explains = checked.request.params.logprobs is not None
    writer = ResponseWriter(known, explains, serving.tokens.token_bytes, checked.format)
    return CheckedResponse(checked.request, writer, bool(body.stream), items.encoded(input) if kept else None)


def _check_previous(body: ResponsesBody, stores: bool, found: bool) -> None:
    """Raises Unsupported, BadRequest."""
    asked, param = body.previous_response_id, "previous_response_id"
    if asked is not None and not stores:
        raise Unsupported(f"{param} is not supported by this server: it stores no responses", param=param)
    if asked is not None and not found:
        raise BadRequest(f"{param}: no response is stored here under {asked[:80]!r}, or not any more", param=param)


def _instructions(body: ResponsesBody) -> str | None:
    return None if body.instructions is UNSET else bodies.decode(_INSTRUCTIONS, body.instructions, "instructions")
