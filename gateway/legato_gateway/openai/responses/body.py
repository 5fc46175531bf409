"""The body of `POST /v1/responses`: checks fields and refuses unsupported ones. `prepare` interprets the rest."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.responses.items import Input
from legato_gateway.openai.schemas import Absent, Extra, NoEffect, SamplingBody, marked, whole
from legato_gateway.request import MAX_NAME_CHARACTERS
from legato_gateway.serving import ignored
from legato_gateway.serving.bodies import parsing
from legato_gateway.serving.openapi import json_schema
from legato_protocol.sampling.limits import MAX_LOGPROBS, RANGES, Interval

MAX_METADATA: Final = 16  # these three are OpenAI's
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512
LOGPROBS: Final = "message.output_text.logprobs"
INCLUDABLE: Final = (
    LOGPROBS,
    # of items that answers here never have
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
SHARED: Final = (  # fields that chats have too; all other fields of chats are refused
    *("model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "seed", "stop"),
    *("stop_token_ids", "ignore_eos", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"),
    *("logit_bias", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("skip_special_tokens", "priority", "cache_salt", "user", "service_tier", "request_id", "early_stopping"),
    *("length_penalty", "spaces_between_special_tokens", "metadata", "store"),
)
PROMPT_FIELDS: Final = (  # fields that make up the prompt of a response
    *("input", "model", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"),
    *("truncation", "previous_response_id", "conversation"),
)
_CHAT_NAMES: Final = {"max_tokens": "max_output_tokens", "response_format": "text.format"}
_OFF: Final = (b"null", b"false", b"[]", b"{}")
_DEFAULTS: Final = {"context": "auto", "mode": "standard"}  # of `reasoning`

Whole = Annotated[int, Meta(ge=1, le=int(RANGES["max_tokens"].most), description=f"1 to {RANGES['max_tokens'].most}")]
Alternatives = Annotated[int, whole(Interval(0, MAX_LOGPROBS))]
Included = Annotated[tuple[str, ...], Meta(max_length=64, description=f"a list of {', '.join(INCLUDABLE)}")]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=MAX_METADATA_KEY)], Annotated[str, Meta(max_length=MAX_METADATA_VALUE)]],
    Meta(max_length=MAX_METADATA),
]
_METADATA = msgspec.json.Decoder(Metadata | None)
_FLAG = msgspec.json.Decoder(bool | None)


class Reasoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # its older name
    context: str | None = None
    mode: str | None = None


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None
    verbosity: str | None = None


_REASONING = msgspec.json.Decoder(Reasoning | None)
_TEXT = msgspec.json.Decoder(TextConfig | None)


class ResponsesBody(SamplingBody, frozen=True, kw_only=True):
    """Fields that chats have too mean the same here."""

    input: Annotated[Raw, Meta(extra_json_schema=json_schema(Input))]
    instructions: Raw | UnsetType = UNSET
    max_output_tokens: Whole | None = None
    tools: Raw | UnsetType = UNSET
    tool_choice: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    text: Raw | UnsetType = UNSET
    include: Included | None = None
    top_logprobs: Alternatives | None = None
    reasoning: Raw | UnsetType = UNSET
    truncation: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] | None = None
    background: bool | None = None
    # features that this server does not have
    access_programs: Absent = UNSET
    background_options: Absent = UNSET
    conversation: Absent = UNSET
    image: Absent = UNSET
    moderation: Absent = UNSET
    prompt: Absent = UNSET
    context_management: Extra = UNSET
    # without effect on an answer
    client_metadata: NoEffect = UNSET
    max_tool_calls: NoEffect = UNSET  # of tools that run in the server, which has none
    prompt_cache_key: NoEffect = UNSET
    prompt_cache_options: NoEffect = UNSET
    prompt_cache_retention: NoEffect = UNSET
    safety_identifier: NoEffect = UNSET


_UNSHARED = (field.name for field in msgspec.structs.fields(SamplingBody) if field.name not in (*SHARED, "n"))
_REFUSED: Final = tuple(dict.fromkeys((*_UNSHARED, *marked(ResponsesBody, Absent))))
_COUNTED: Final[list[Any]] = [
    *(
        (each.name, each.type, each.default)
        for each in msgspec.structs.fields(ResponsesBody)
        if each.name in PROMPT_FIELDS
    ),
    ("personality", Absent, UNSET),  # a feature that this server does not have
]
InputTokensBody = msgspec.defstruct(
    "InputTokensBody",
    _COUNTED,
    frozen=True,
    kw_only=True,
    namespace={"__doc__": "The fields of a response's request that make up its prompt, with the same meaning."},
)


def with_prompt(counted: Any) -> ResponsesBody:
    """Returns the request for a response that an InputTokensBody asks about. Raises Unsupported."""
    if _is_on(counted.personality):
        raise _unsupported("personality")
    return ResponsesBody(**{name: getattr(counted, name) for name in PROMPT_FIELDS})


def check(body: ResponsesBody) -> None:
    """Raises Unsupported, BadRequest for the first field that asks for a missing feature."""
    for field in _REFUSED:
        if _is_on(getattr(body, field)):
            raise _unsupported(field)
    if _is_on(body.context_management):
        ignored.note("context_management")
    if body.stream_options is not None and body.stream_options.continuous_usage_stats:
        raise _unsupported("stream_options.continuous_usage_stats")
    if body.background:
        raise _unsupported("background")
    if body.truncation not in (None, "disabled"):
        raise Unsupported("truncation is not supported by this server but as disabled", param="truncation")
    if (body.n or 1) != 1:
        raise Unsupported("n is not supported by this server here: a response is one answer", param="n")
    for number, name in enumerate(body.include or ()):
        if name not in INCLUDABLE:
            text = f"not a valid include[{number}]: {name[:60]!r} ({', '.join(INCLUDABLE)})"
            raise BadRequest(text, param=f"include[{number}]")
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise BadRequest(f"top_logprobs needs include: [{LOGPROBS!r}]", param="top_logprobs")


def metadata(body: ResponsesBody) -> dict[str, str]:
    """Returns the client's metadata, which the response repeats. Raises BadRequest."""
    return parsing.optional(_METADATA, body.metadata, "metadata") or {}


def may_be_stored(body: ResponsesBody) -> bool:
    """Returns False if the client forbids storing, as at OpenAI. Raises BadRequest."""
    return body.store is UNSET or parsing.decode(_FLAG, body.store, "store") is not False


def text(body: ResponsesBody) -> TextConfig:
    """Returns the requested format of the answer's text. Raises BadRequest."""
    given = parsing.optional(_TEXT, body.text, "text") or TextConfig()
    if given.verbosity not in (None, "medium"):
        ignored.note("text.verbosity")
    return given


def effort(body: ResponsesBody) -> str | None:
    """Returns the requested reasoning effort. Raises BadRequest."""
    given = parsing.optional(_REASONING, body.reasoning, "reasoning") or Reasoning()
    for field in ("summary", "generate_summary", "context", "mode"):
        if getattr(given, field) not in (None, _DEFAULTS.get(field)):
            ignored.note(f"reasoning.{field}")
    return given.effort


def _is_on(given: Any) -> bool:
    """True if an unsupported field asks for anything."""
    if isinstance(given, Raw):
        return bytes(memoryview(given)[:16]).strip() not in _OFF
    return given not in (None, UNSET, False)


def _unsupported(field: str) -> Unsupported:
    instead = f" here; it is {_CHAT_NAMES[field]}" if field in _CHAT_NAMES else " by this server"
    return Unsupported(f"{field} is not supported{instead}", param=field)
