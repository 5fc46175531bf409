"""`POST /v1/responses`: from its body to a request of the relay, and to the writer of its answer. `input_tokens` goes
as far as the prompt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from legato_gateway.errors import NotFound, Unsupported
from legato_gateway.openai import chat, unsupported
from legato_gateway.openai.responses import as_chat, head, items, tools
from legato_gateway.openai.responses import body as body_of
from legato_gateway.openai.responses.body import InputTokensBody, ResponsesBody, TextConfig
from legato_gateway.openai.responses.items import Conversation, Input
from legato_gateway.openai.responses.output import item_id
from legato_gateway.openai.responses.tools import OfferedTools
from legato_gateway.openai.responses.writer import ResponseWriter
from legato_gateway.openai.schemas import ChatBody
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
    meant = _meant(body, stores, before)
    metadata, kept = body_of.metadata(body), body_of.may_be_stored(body) and stores
    id = item_id("resp")
    with as_chat.rename_in_errors(meant.talk.places, meant.tools.places):
        checked = chat.chat_request(serving, asked, id, meant.chat, meant.talk.messages)
    as_chat.rename_ignored(meant.tools.places)
    known = head.fields(
        id, served, body, meant.instructions, meant.text, meant.effort, metadata, kept, checked.request.params
    )
    explains = checked.request.params.logprobs is not None
    writer = ResponseWriter(known, explains, serving.tokens.token_bytes, checked.format, meant.tools.called)
    return CheckedResponse(checked.request, writer, bool(body.stream), items.encoded(meant.input) if kept else None)


def count(
    serving: ModelServing, _asked: Asked, raw: bytearray, stores: bool = False, before: Sequence[bytes] | None = None
) -> int:
    """How many tokens the prompt of such a response has. Raises what the client is told."""
    body = body_of.with_prompt(bodies.parse(InputTokensBody, raw))
    serving.check_model(body.model)
    meant = _meant(body, stores, before)
    with as_chat.rename_in_errors(meant.talk.places, meant.tools.places):
        _, prompt = chat.rendered(serving, meant.chat, meant.talk.messages)
    return len(prompt)


@dataclass(frozen=True, slots=True)
class _Meant:
    """A request as the chat that it means."""

    chat: ChatBody
    talk: Conversation
    instructions: str | None
    input: Input
    text: TextConfig
    effort: str | None
    tools: OfferedTools


def _meant(body: ResponsesBody, stores: bool, before: Sequence[bytes] | None) -> _Meant:
    """Raises Unsupported, BadRequest."""
    body_of.check(body)
    _check_previous(body, stores, before is not None)
    text, effort = body_of.text(body), body_of.effort(body)
    offered = tools.read(body.tools)
    with as_chat.rename_in_errors():
        as_asked = as_chat.chat_body(body, text, effort, offered)
        unsupported.check_chat(as_asked)
    instructions, input = _instructions(body), bodies.decode(_INPUT, body.input, "input")
    talk = items.conversation(instructions, items.decoded(before or ()), input)
    return _Meant(as_asked, talk, instructions, input, text, effort, offered)


def _check_previous(body: ResponsesBody, stores: bool, found: bool) -> None:
    """Raises Unsupported, BadRequest."""
    asked, param = body.previous_response_id, "previous_response_id"
    if asked is not None and not stores:
        raise Unsupported(f"{param} is not supported by this server: it stores no responses", param=param)
    if asked is not None and not found:
        text = f"{param}: no response is stored here under {asked[:80]!r}, or not any more"
        raise NotFound(text, param=param, code="previous_response_not_found", status=400)


def _instructions(body: ResponsesBody) -> str | None:
    return None if body.instructions is UNSET else bodies.decode(_INSTRUCTIONS, body.instructions, "instructions")
