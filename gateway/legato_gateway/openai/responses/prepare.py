"""`POST /v1/responses`: converts its body to a relay request, and creates the writer of its answer.

`input_tokens` only converts the prompt.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.json import encode

from legato_gateway.errors import NotFound, Unsupported
from legato_gateway.openai import unsupported
from legato_gateway.openai.chat import prepare as chat
from legato_gateway.openai.chat.renaming import rename_in_errors
from legato_gateway.openai.responses import body as response_body
from legato_gateway.openai.responses import items, tools
from legato_gateway.openai.responses.body import LOGPROBS, SHARED, InputTokensBody, ResponsesBody, TextConfig
from legato_gateway.openai.responses.items import Conversation, Input
from legato_gateway.openai.responses.output import Fields, item_id
from legato_gateway.openai.responses.tools import ConvertedTools
from legato_gateway.openai.responses.writer import ResponseWriter
from legato_gateway.openai.schemas import ChatBody
from legato_gateway.request import GenerationRequest
from legato_gateway.serving import ignored
from legato_gateway.serving.bodies import parsing
from legato_gateway.serving.model_serving import ModelServing, ServedModel
from legato_gateway.serving.prepared_request import Asked
from legato_protocol.sampling.parameters import SamplingParams

_NO_MESSAGES: Final = Raw(b"[]")  # they are passed separately
_NAMES: Final = (  # of fields, for `renaming`
    (re.compile(r"^messages$"), "input"),
    (re.compile(r"response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"\breasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"\bmax_(completion_)?tokens\b"), "max_output_tokens"),
)
_INPUT = msgspec.json.Decoder(Input)
_INSTRUCTIONS = msgspec.json.Decoder(str | None)
_SHORT = 2048  # bytes of JSON: a limit for echoed values
_ECHOED = ("max_tool_calls", "prompt_cache_key", "safety_identifier")


def chat_body(body: ResponsesBody, text: TextConfig, effort: str | None, offered: ConvertedTools) -> ChatBody:
    """Returns the chat's body without its messages. Raises BadRequest, Unsupported."""
    logprobs = LOGPROBS in (body.include or ())
    return ChatBody(
        **{name: getattr(body, name) for name in SHARED},
        messages=_NO_MESSAGES,
        response_format=_format(text.format),
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs,
        top_logprobs=body.top_logprobs if logprobs else None,
        tools=offered.functions,
        tool_choice=tools.choice(body.tool_choice, offered),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=effort,
    )


def rename_ignored(tool_places: Sequence[str]) -> None:
    """Renames the ignored fields of the chat to this API's."""
    tools = {f"tools[{number}]": place for number, place in enumerate(tool_places)}
    ignored.rename({"reasoning_effort": "reasoning.effort", **tools})


def _format(given: dict[str, Any] | None) -> Raw | UnsetType:
    if given is None:
        return UNSET
    if given.get("type") != "json_schema":
        return Raw(encode(given))
    named = {key: value for key, value in given.items() if key != "type"}
    return Raw(encode({"type": "json_schema", "json_schema": named}))


@dataclass(frozen=True, slots=True)
class CheckedResponse:
    """A checked request. `kept` are its items as JSON if the response is to be stored."""

    request: GenerationRequest
    writer: ResponseWriter
    stream: bool
    kept: bytes | None


def prepare(
    serving: ModelServing, asked: Asked, raw: bytearray, stores: bool = False, before: Sequence[bytes] | None = None
) -> CheckedResponse:
    """Checks and tokenizes, as for a chat. Raises the client's errors.

    `stores`: responses may be stored. `before` are the turns of the previous response as JSON, if it is stored.
    """
    body = parsing.parse(ResponsesBody, raw)
    served = serving.check_model(body.model)
    converted = _converted(body, stores, before)
    metadata, kept = response_body.metadata(body), response_body.may_be_stored(body) and stores
    id = item_id("resp")
    with rename_in_errors(_NAMES, converted.talk.places, converted.tools.places):
        checked = chat.chat_request(serving, asked, id, converted.chat, converted.talk.messages)
    rename_ignored(converted.tools.places)
    known = head(
        id,
        served,
        body,
        converted.instructions,
        converted.text,
        converted.effort,
        metadata,
        kept,
        checked.request.params,
    )
    explains = checked.request.params.logprobs is not None
    writer = ResponseWriter(known, explains, serving.tokens.token_bytes, checked.format, converted.tools.called)
    return CheckedResponse(checked.request, writer, bool(body.stream), items.encoded(converted.input) if kept else None)


def count(
    serving: ModelServing, _asked: Asked, raw: bytearray, stores: bool = False, before: Sequence[bytes] | None = None
) -> int:
    """Returns the number of tokens of such a response's prompt. Raises the client's errors."""
    body = response_body.with_prompt(parsing.parse(InputTokensBody, raw))
    serving.check_model(body.model)
    converted = _converted(body, stores, before)
    with rename_in_errors(_NAMES, converted.talk.places, converted.tools.places):
        _, prompt = chat.rendered(serving, converted.chat, converted.talk.messages)
    return len(prompt)


@dataclass(frozen=True, slots=True)
class _ConvertedRequest:
    """A request, converted to a chat."""

    chat: ChatBody
    talk: Conversation
    instructions: str | None
    input: Input
    text: TextConfig
    effort: str | None
    tools: ConvertedTools


def _converted(body: ResponsesBody, stores: bool, before: Sequence[bytes] | None) -> _ConvertedRequest:
    """Converts a request. Raises Unsupported, BadRequest."""
    response_body.check(body)
    _check_previous(body, stores, before is not None)
    text, effort = response_body.text(body), response_body.effort(body)
    offered = tools.read(body.tools)
    with rename_in_errors(_NAMES):
        as_asked = chat_body(body, text, effort, offered)
        unsupported.check_chat(as_asked)
    instructions, input = _instructions(body), parsing.decode(_INPUT, body.input, "input")
    talk = items.conversation(instructions, items.decoded(before or ()), input)
    return _ConvertedRequest(as_asked, talk, instructions, input, text, effort, offered)


def _check_previous(body: ResponsesBody, stores: bool, known: bool) -> None:
    """Raises Unsupported, BadRequest for a previous response that cannot be continued."""
    asked, param = body.previous_response_id, "previous_response_id"
    if asked is not None and not stores:
        raise Unsupported(f"{param} is not supported by this server: it stores no responses", param=param)
    if asked is not None and not known:
        text = f"{param}: no response is stored here under {asked[:80]!r}, or not any more"
        raise NotFound(text, param=param, code="previous_response_not_found", status=400)


def _instructions(body: ResponsesBody) -> str | None:
    return parsing.optional(_INSTRUCTIONS, body.instructions, "instructions")


def head(
    id: str,
    model: ServedModel,
    body: ResponsesBody,
    instructions: str | None,
    text: TextConfig,
    effort: str | None,
    metadata: Mapping[str, str],
    stored: bool,
    params: SamplingParams,
) -> Fields:
    """Returns the fields of a response that are known before its answer: the request as it was understood.

    `params` are the sampling parameters with defaults.
    """
    return {
        "id": id,
        "object": "response",
        "created_at": int(time.time()),
        "model": model.name,
        "instructions": instructions,
        "previous_response_id": body.previous_response_id,
        "max_output_tokens": body.max_output_tokens,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "tools": _given(body.tools) or [],
        "tool_choice": _given(body.tool_choice) or "auto",
        "text": {"format": text.format or {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": effort, "summary": None},
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "metadata": metadata,
        "background": False,
        "store": stored,
        "service_tier": "default",
        **{name: _short(getattr(body, name)) for name in _ECHOED},
        "user": body.user,
    }


def _given(raw: Raw | UnsetType) -> Raw | None:
    """Returns a copy that does not keep the whole body alive."""
    return None if raw is UNSET or bytes(memoryview(raw)[:16]).strip() == b"null" else raw.copy()


def _short(raw: Raw | UnsetType) -> Any:
    """Returns the value if it is short. It has no effect and was not checked, so it may be anything."""
    given = _given(raw)
    return given if given is not None and memoryview(given).nbytes <= _SHORT else None
