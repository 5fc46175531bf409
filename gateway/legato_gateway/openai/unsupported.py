"""Refuses requests for missing features by the name of the field, so that none is obeyed only in part."""

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.schemas import Absent, ChatBody, ChatMessage, CompletionBody, Extra, SamplingBody, marked
from legato_gateway.serving import ignored
from legato_gateway.serving.bodies import parsing

_ROLE = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the model's chat template decides which roles exist
_SHORT = 256  # bytes of JSON: no value that leaves a feature off is longer
_LONG = object()
_ANYTHING = msgspec.json.Decoder(Any)
_INSTEAD = {  # an alternative to a missing feature, or the reason why it is missing
    "chat_template": "a template is a program, which this server runs only for the model's makers",
    "documents": "put their text into a message",
    "stop_regex": "use stop, or structured_outputs.regex for the whole answer",
    "suffix": "models here continue a text, they do not fill it in",
}


def check_chat(body: ChatBody) -> None:
    """Raises Unsupported for the first field that asks for a missing feature."""
    _check_fields(body)
    if _value(body, "modalities") not in (None, ["text"]):
        raise _unsupported("modalities")
    if _value(body, "verbosity") not in (None, "medium"):
        ignored.note("verbosity")
    for field in marked(ChatBody, Extra):
        if not _means_off(body, field):
            ignored.note(field)


def check_completion(body: CompletionBody) -> None:
    """Raises Unsupported for the first field that asks for a missing feature."""
    _check_fields(body)


def check_message(message: ChatMessage, at: str) -> None:
    """Raises BadRequest for a message with neither text nor calls, and Unsupported for other content."""
    if not _ROLE.fullmatch(message.role):
        raise BadRequest(f"not a valid {at}.role: {message.role[:40]!r} (letters, digits, - and _)", param=f"{at}.role")
    if not _means_off(message, "audio", f"{at}."):
        raise _unsupported(f"{at}.audio")
    calls = "tool_calls" if message.tool_calls else "function_call" if message.function_call else ""
    if calls and message.role != "assistant":
        raise BadRequest(f"{at}.{calls}: only messages of the role assistant make calls", param=f"{at}.{calls}")
    thought = "reasoning_content" if message.reasoning_content else "reasoning" if message.reasoning else ""
    if thought and message.role != "assistant":
        raise BadRequest(f"{at}.{thought}: only messages of the role assistant have it", param=f"{at}.{thought}")
    if message.content is None and not (calls or thought):
        raise BadRequest(f"{at}.content is missing", param=f"{at}.content")
    if message.content is None or isinstance(message.content, str):
        return
    for j, part in enumerate(message.content):
        if part.type != "text":
            text = f"content parts of type {part.type[:40]!r} are not supported by this server; only text is"
            raise Unsupported(text, param=f"{at}.content[{j}].type")
        if part.text is None:
            raise BadRequest(f"{at}.content[{j}].text is missing", param=f"{at}.content[{j}].text")


def _check_fields(body: SamplingBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options needs stream: true", param="stream_options")
    for field in marked(type(body), Absent):
        if not _means_off(body, field):
            raise _unsupported(field)


def _value(owner: SamplingBody | ChatMessage, field: str, at: str = "") -> Any:
    """Returns the value if it is short. Raises BadRequest for a number that is out of range."""
    given: Raw | UnsetType = getattr(owner, field)
    if given is UNSET:
        return None
    return _LONG if memoryview(given).nbytes > _SHORT else parsing.decode(_ANYTHING, given, f"{at}{field}")


def _means_off(owner: SamplingBody | ChatMessage, field: str, at: str = "") -> bool:
    value = _value(owner, field, at)
    return value is None or value is False or value in ([], "", {})


def _unsupported(field: str) -> Unsupported:
    instead = f": {_INSTEAD[field]}" if field in _INSTEAD else ""
    return Unsupported(f"{field} is not supported by this server{instead}", param=field)
