"""Requests for features that are not there, refused by the name of the field instead of being half obeyed."""

from typing import Any

import msgspec
from msgspec import UNSET

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai import bodies
from legato_gateway.openai.schemas import Absent, ChatBody, ChatMessage, CompletionBody, SamplingBody

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_SHORT = 256  # bytes of JSON: nothing that leaves a feature off is longer
_LONG = object()
_ANYTHING = msgspec.json.Decoder(Any)
_EVERYWHERE = (
    "prompt_logprobs",
    "use_beam_search",
)
_CHAT = ("audio", "prediction", "web_search_options", "continue_final_message")


def check_chat(body: ChatBody) -> None:
    """Raises Unsupported for the first field that asks for something which is not there."""
    _check_fields(body, (*_EVERYWHERE, *_CHAT))
    if _value(body, "modalities") not in (None, ["text"]):
        raise _unsupported("modalities")
    if body.add_generation_prompt is False:
        raise _unsupported("add_generation_prompt")


def check_completion(body: CompletionBody) -> None:
    """Raises Unsupported for the first field that asks for something which is not there."""
    _check_fields(body, (*_EVERYWHERE, "suffix", "prompt_embeds"))
    if body.best_of is not None and body.best_of != (body.n or 1):
        if body.best_of < (body.n or 1):
            raise BadRequest(f"best_of is {body.best_of}, less than n = {body.n}", param="best_of")
        raise _unsupported("best_of")
    if body.echo and body.logprobs is not None:
        raise Unsupported("echo together with logprobs is not supported by this server", param="echo")


def check_message(message: ChatMessage, at: str) -> None:
    """Raises BadRequest for a message with neither text nor calls, and Unsupported for one that has anything else."""
    if message.role not in ROLES:
        raise BadRequest(f"not a valid {at}.role: {message.role[:40]!r} ({', '.join(ROLES)})", param=f"{at}.role")
    if not _means_off(message, "audio", f"{at}."):
        raise _unsupported(f"{at}.audio")
    calls = "tool_calls" if message.tool_calls else "function_call" if message.function_call else ""
    if calls and message.role != "assistant":
        raise BadRequest(f"{at}.{calls}: only messages of the role assistant make calls", param=f"{at}.{calls}")
    if message.content is None and not calls:
        raise BadRequest(f"{at}.content is missing", param=f"{at}.content")
    if message.content is None:
        return
    if isinstance(message.content, str):
        return
    for j, part in enumerate(message.content):
        if part.type != "text":
            text = f"content parts of type {part.type[:40]!r} are not supported by this server; only text is"
            raise Unsupported(text, param=f"{at}.content[{j}].type")
        if part.text is None:
            raise BadRequest(f"{at}.content[{j}].text is missing", param=f"{at}.content[{j}].text")


def _check_fields(body: SamplingBody, fields: tuple[str, ...]) -> None:
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options needs stream: true", param="stream_options")
    for field in fields:
        if not _means_off(body, field):
            raise _unsupported(field)


def _value(owner: SamplingBody | ChatMessage, field: str, at: str = "") -> Any:
    """What was given, if it is short. Raises BadRequest for a number that is out of range."""
    given: Absent = getattr(owner, field)
    if given is UNSET:
        return None
    return _LONG if memoryview(given).nbytes > _SHORT else bodies.decode(_ANYTHING, given, f"{at}{field}")


def _means_off(owner: SamplingBody | ChatMessage, field: str, at: str = "") -> bool:
    value = _value(owner, field, at)
    return value is None or value is False or value in ([], "", {})


def _unsupported(field: str) -> Unsupported:
    return Unsupported(f"{field} is not supported by this server", param=field)
