"""vLLM's `POST /tokenize` and `POST /detokenize`: tokens of prompts and chats, and the text of tokens."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.json import encode

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai import unsupported
from legato_gateway.openai.chat import prepare as chat
from legato_gateway.openai.schemas import Absent, ChatBody, Messages, TokenId
from legato_gateway.serving import openapi
from legato_gateway.serving.bodies import parsing
from legato_gateway.serving.context import ServingContext
from legato_gateway.serving.handlers import prepared
from legato_gateway.serving.model_serving import ModelServing, too_long
from legato_gateway.serving.openapi import json_schema
from legato_gateway.serving.prepared_request import Asked

MAX_TOKEN_STRS = 65_536  # per answer
_Ids = tuple[TokenId, ...]
_TEXT = msgspec.json.Decoder(str)
_IDS = msgspec.json.Decoder(_Ids)
_MESSAGES = msgspec.json.Decoder(Messages)
_CHAT_FIELDS = (
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
)


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """A body with either `prompt` or `messages`."""

    model: str | None = None
    prompt: Annotated[Raw | UnsetType, Meta(extra_json_schema={"type": "string"})] = UNSET
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    messages: Annotated[Raw | UnsetType, Meta(extra_json_schema=json_schema(Messages))] = UNSET
    tools: Raw | UnsetType = UNSET
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    # fields of chats, which `unsupported` checks
    chat_template: Absent = UNSET
    chat_template_kwargs: Absent = UNSET
    media_io_kwargs: Absent = UNSET
    mm_processor_kwargs: Absent = UNSET


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    tokens: Annotated[Raw, Meta(extra_json_schema=json_schema(_Ids))]
    model: str | None = None


def router(serving: ServingContext) -> APIRouter:
    """Returns the two routes."""
    routes = APIRouter(responses=openapi.errors())

    @routes.post("/tokenize", response_model=None, openapi_extra=openapi.takes(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """The tokens of a prompt or a chat."""
        return Response(await prepared(serving, request, tokens), media_type="application/json")

    @routes.post("/detokenize", response_model=None, openapi_extra=openapi.takes(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        return Response(await prepared(serving, request, text), media_type="application/json")

    return routes


def tokens(serving: ModelServing, _asked: Asked, raw: bytearray) -> bytes:
    """Returns the answer of `/tokenize`, as JSON: encoding it in the event loop would delay streams. Raises the
    client's errors."""
    body = parsing.parse(TokenizeBody, raw)
    serving.check_model(body.model)
    ids = _prompt_tokens(serving, body) if body.messages is UNSET else _chat_tokens(serving, body)
    shown = _token_texts(serving, ids) if body.return_token_strs else None
    return encode({"count": len(ids), "max_model_len": serving.model.context, "tokens": ids, "token_strs": shown})


def text(serving: ModelServing, _asked: Asked, raw: bytearray) -> bytes:
    """Returns the answer of `/detokenize` as JSON. Raises the client's errors."""
    body = parsing.parse(DetokenizeBody, raw)
    serving.check_model(body.model)
    count = bytes(body.tokens).count(b",") + 1
    if count > serving.model.context:
        raise too_long(serving.model.context, f"there are {count} tokens", "tokens")
    ids = parsing.decode(_IDS, body.tokens, "tokens")
    if ids:
        serving.check_prompt(ids, "tokens")
    return encode({"prompt": b"".join(map(serving.tokens.token_bytes, ids)).decode(errors="replace")})


def _token_texts(serving: ModelServing, ids: tuple[int, ...]) -> list[str]:
    if len(ids) > MAX_TOKEN_STRS:
        raise BadRequest(
            f"{len(ids)} tokens are too many for token_strs (at most {MAX_TOKEN_STRS})", param="return_token_strs"
        )
    return [serving.tokens.token_text(id) for id in ids]


def _prompt_tokens(serving: ModelServing, body: TokenizeBody) -> tuple[int, ...]:
    for field in (*_CHAT_FIELDS, "media_io_kwargs"):
        if _is_given(getattr(body, field)):
            raise BadRequest(f"{field} needs messages", param=field)
    if body.prompt is UNSET:
        raise BadRequest("prompt or messages is missing", param="prompt")
    given = parsing.decode(_TEXT, body.prompt, "prompt")
    with serving.tokenizing("prompt"):
        special, salt = body.add_special_tokens is not False, serving.cache_salt
        return tuple(serving.tokens.encode(given, special, serving.model.context, salt=salt))


def _chat_tokens(serving: ModelServing, body: TokenizeBody) -> tuple[int, ...]:
    assert body.messages is not UNSET
    if body.prompt is not UNSET:
        raise BadRequest("prompt and messages contradict each other: give one", param="prompt")
    if _is_given(body.media_io_kwargs):
        raise Unsupported("media_io_kwargs is not supported by this server", param="media_io_kwargs")
    fields = {name: getattr(body, name) for name in _CHAT_FIELDS}
    asked = ChatBody(messages=body.messages, add_special_tokens=body.add_special_tokens, **fields)
    unsupported.check_chat(asked)
    messages = parsing.decode(_MESSAGES, body.messages, "messages")
    return chat.rendered(serving, asked, messages)[1]


def _is_given(value: Any) -> bool:
    return value not in (UNSET, None) and (not isinstance(value, Raw) or bytes(value) not in (b"null", b"[]", b"{}"))
