"""`POST /v1/messages` and its `count_tokens`: from their bodies to a chat. `writer` spells the answers."""

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.anthropic import blocks, paths, tools
from legato_gateway.anthropic.schemas import CountTokensBody, Kind, MessagesBody, OutputConfig, PromptBody
from legato_gateway.anthropic.writer import MessageHead, MessagesWriter
from legato_gateway.errors import BadRequest
from legato_gateway.openai import bodies, chat
from legato_gateway.openai.generation_response import PreparedRequest
from legato_gateway.openai.params import Asked
from legato_gateway.openai.schemas import ChatBody
from legato_gateway.openai.serving import ModelServing

VERSIONS: Final = ("2023-06-01", "2026-10-21")  # alike in all that is supported here
HEADER_VERSION: Final = "anthropic-version"
_KIND = msgspec.json.Decoder(Kind | None)
_OUTPUT = msgspec.json.Decoder(OutputConfig | None)
_ABSENT: Final = ("container", "diagnostics", "inference_geo")


def prepare(serving: ModelServing, asked: Asked, raw: bytearray) -> PreparedRequest:
    """Checks and tokenizes, as `chat.prepare` does."""
    _check_version(asked.headers)
    body = bodies.parse(MessagesBody, raw)
    served = serving.check_model(body.model)
    for field in _ABSENT:
        if blocks.is_given(getattr(body, field)):
            raise blocks.unsupported(field)
    talk = blocks.conversation(body.system, body.messages)
    asking = _chat(body, stop=body.stop_sequences, temperature=body.temperature, top_p=body.top_p, top_k=body.top_k)
    id = f"msg_{secrets.token_hex(12)}"
    with _told(talk.places):
        made = chat.chat_request(serving, asked, id, asking, talk.messages)
    room = made.request.params.max_tokens
    params = msgspec.structs.replace(made.request.params, max_tokens=min(room, body.max_tokens))
    head = MessageHead(id, served.name, len(made.request.prompt), body.max_tokens > room)
    return PreparedRequest(
        requests=(dataclasses.replace(made.request, params=params),),
        writer=MessagesWriter(head, made.format),
        stream=bool(body.stream),
        explain=made.request.explain,
        id=id,
        model=served.name,
        id_header=b"request-id",
    )


def count(serving: ModelServing, asked: Asked, raw: bytearray) -> int:
    """How many tokens the prompt of such a message has."""
    _check_version(asked.headers)
    body = bodies.parse(CountTokensBody, raw)
    serving.check_model(body.model)
    talk = blocks.conversation(body.system, body.messages)
    asking = _chat(body)
    with _told(talk.places):
        _, prompt = chat.rendered(serving, asking, talk.messages)
    return len(prompt)


def _chat(body: PromptBody, **fields: Any) -> ChatBody:
    """What is asked of a chat, apart from its messages. Raises BadRequest."""
    _check_thinking(body.thinking)
    tool_choice, parallel = tools.choice(body.tool_choice)
    return ChatBody(
        model=body.model,
        messages=Raw(b"[]"),
        tools=tools.functions(body.tools),
        tool_choice=tool_choice,
        parallel_tool_calls=parallel,
        response_format=_response_format(body.output_config),
        **fields,
    )


def _response_format(raw: Raw | UnsetType) -> Raw | UnsetType:
    config = None if raw is UNSET else bodies.decode(_OUTPUT, raw, "output_config")
    if config is None:
        return UNSET
    if blocks.is_given(config.effort):
        raise blocks.unsupported("output_config.effort")
    if config.format is None:
        return UNSET
    schema = {"name": "output", "schema": config.format.schema}
    return Raw(msgspec.json.encode({"type": "json_schema", "json_schema": schema}))


def _check_thinking(raw: Raw | UnsetType) -> None:
    """Thinking can be left off."""
    given = None if raw is UNSET else bodies.decode(_KIND, raw, "thinking")
    if given is not None and given.type != "disabled":
        raise blocks.unsupported("thinking")


def _check_version(headers: Mapping[str, str]) -> None:
    said = headers.get(HEADER_VERSION, VERSIONS[-1])
    if said not in VERSIONS:
        text = f"not a valid {HEADER_VERSION}: {said[:40]!r} ({', '.join(VERSIONS)})"
        raise BadRequest(text, param=HEADER_VERSION)


@contextmanager
def _told(places: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except BadRequest as error:
        paths.rename(error, places)
        raise
