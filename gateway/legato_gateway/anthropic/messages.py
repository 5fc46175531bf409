"""`POST /v1/messages` and its `count_tokens`: converts their bodies to chats. `writer` writes the answers."""

import dataclasses
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.anthropic import blocks, errors, tools
from legato_gateway.anthropic.errors import HEADER_VERSION
from legato_gateway.anthropic.schemas import CountTokensBody, MessagesBody, OutputConfig, PromptBody, Thinking
from legato_gateway.anthropic.writer import MessageHead, MessagesWriter, PrefixWriter
from legato_gateway.errors import BadRequest, ContextLengthExceeded, ThreadUnsupported
from legato_gateway.openai.chat import prepare as chat
from legato_gateway.openai.chat.renaming import rename_in_errors
from legato_gateway.openai.schemas import Absent, ChatBody, Extra, marked
from legato_gateway.serving import ignored, openapi
from legato_gateway.serving.bodies import parsing
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.handlers import add_generation, prepared
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.serving.prepared_request import Asked, PreparedRequest

VERSIONS: Final = ("2023-06-01", "2026-10-21")  # identical in the supported features
_THINKING = msgspec.json.Decoder(Thinking | None)
_SWITCHED_ON: Final = Raw(b'{"enable_thinking":true,"thinking":true}')
_OUTPUT = msgspec.json.Decoder(OutputConfig | None)
_NAMES: Final = {"reasoning_effort": "output_config.effort", "thinking_token_budget": "thinking.budget_tokens"}
_FIELDS: Final = (  # names of a chat's fields, for `renaming`
    (re.compile(r"\breasoning_effort 'none'"), "thinking 'disabled'"),
    (re.compile(r"\breasoning_effort\b"), "output_config.effort"),
    (re.compile(r"\bthinking_token_budget\b"), "thinking.budget_tokens"),
    (re.compile(r"(\btools\[\d+\])\.function\.parameters\b"), r"\1.input_schema"),
    (re.compile(r"(\btools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"\bresponse_format\.json_schema\.schema\b"), "output_config.format.schema"),
    (re.compile(r"\.tool_calls\[\d+\]\.function\.arguments\b"), ".content: input of a tool_use block"),
    (re.compile(r"\.tool_call_id\b"), ".tool_use_id"),
)


def prepare(serving: ModelServing, asked: Asked, raw: bytearray) -> PreparedRequest:
    """Checks and tokenizes, as `chat.prepare` does."""
    _check_version(asked.headers)
    body = parsing.parse(MessagesBody, raw)
    served = serving.check_model(body.model)
    if blocks.is_given(body.thread):
        raise ThreadUnsupported("thread is not supported by this server", param="thread")
    talk = blocks.conversation(body.system, body.messages)
    asking = _chat(body, stop=body.stop_sequences, temperature=body.temperature, top_p=body.top_p, top_k=body.top_k)
    id = f"msg_{secrets.token_hex(12)}"
    with _renamed_errors(talk.places):
        made = chat.chat_request(serving, asked, id, asking, talk.messages)
    ignored.rename(_NAMES)
    room = serving.model.context - len(made.request.prompt)
    most = min(room, serving.model.max_output or room, body.max_tokens or 1)
    params = msgspec.structs.replace(made.request.params, max_tokens=most)
    head = MessageHead(id, served.name, len(made.request.prompt), body.max_tokens > room == most)
    return PreparedRequest(
        requests=(dataclasses.replace(made.request, params=params),),
        writer=(MessagesWriter if body.max_tokens else PrefixWriter)(head, made.format),
        stream=bool(body.stream),
        explain=made.request.explain,
        id=id,
        model=served.name,
        id_header=b"request-id",
    )


def count(serving: ModelServing, asked: Asked, raw: bytearray) -> int:
    """Returns the number of tokens of such a message's prompt."""
    _check_version(asked.headers)
    body = parsing.parse(CountTokensBody, raw)
    serving.check_model(body.model)
    talk = blocks.conversation(body.system, body.messages)
    asking = _chat(body)
    with _renamed_errors(talk.places):
        _, prompt = chat.rendered(serving, asking, talk.messages)
    return len(prompt)


def _chat(body: PromptBody, **fields: Any) -> ChatBody:
    """Converts a body to a chat's, without its messages. Raises BadRequest."""
    for field in marked(type(body), Absent):
        if blocks.is_given(getattr(body, field)):
            raise blocks.unsupported(field)
    for field in marked(type(body), Extra):
        if blocks.is_given(getattr(body, field)):
            ignored.note(field)
    config = parsing.optional(_OUTPUT, body.output_config, "output_config")
    tool_choice, parallel = tools.choice(body.tool_choice)
    return ChatBody(
        model=body.model,
        messages=Raw(b"[]"),
        tools=tools.functions(body.tools),
        tool_choice=tool_choice,
        parallel_tool_calls=parallel,
        response_format=_response_format(config),
        **_reasoning(body.thinking, config.effort if config is not None else None),
        **fields,
    )


def _response_format(config: OutputConfig | None) -> Raw | UnsetType:
    if config is not None and blocks.is_given(config.task_budget):
        ignored.note("output_config.task_budget")
    if config is None or config.format is None:
        return UNSET
    schema = {"name": "output", "schema": config.format.schema}
    return Raw(msgspec.json.encode({"type": "json_schema", "json_schema": schema}))


def _reasoning(raw: Raw | UnsetType, effort: str | None) -> dict[str, Any]:
    """Converts `thinking` to fields of a chat. Switches that the chat template does not read have no effect."""
    given = parsing.optional(_THINKING, raw, "thinking")
    if given is None:
        return {"reasoning_effort": effort}
    if given.type != "enabled" and given.budget_tokens is not None:
        raise BadRequest("thinking.budget_tokens needs the type enabled", param="thinking.budget_tokens")
    if given.type == "disabled":
        return {"reasoning_effort": "none"}
    return {
        "reasoning_effort": effort,
        "chat_template_kwargs": _SWITCHED_ON,
        "thinking_token_budget": given.budget_tokens,
        "include_reasoning": given.display != "omitted",
    }


def _check_version(headers: Mapping[str, str]) -> None:
    said = headers.get(HEADER_VERSION, VERSIONS[-1])
    if said not in VERSIONS:
        text = f"not a valid {HEADER_VERSION}: {said[:40]!r} ({', '.join(VERSIONS)})"
        raise BadRequest(text, param=HEADER_VERSION)


@contextmanager
def _renamed_errors(places: Sequence[str]) -> Iterator[None]:
    try:
        with rename_in_errors(_FIELDS, places):
            yield
    except ContextLengthExceeded as error:
        error.message = f"prompt is too long: {error.message}"  # clients that compact conversations look for this
        error.args = (error.message,)
        raise


def router(serving: ServingContext) -> APIRouter:
    """Returns the routes under `/v1/messages`."""
    routes = APIRouter(prefix="/v1", responses=openapi.errors(errors.SCHEMA))
    add_generation(routes, serving, "/messages", prepare, MessagesBody)

    @routes.post("/messages/count_tokens", openapi_extra=openapi.takes(CountTokensBody))
    async def count_tokens(request: Request) -> dict[str, int]:
        """The number of tokens of a message's prompt."""
        return {"input_tokens": await prepared(serving, request, count)}

    return routes
