"""Converts messages for chat templates: calls as objects, results of calls, and older forms of both.

Templates are written for the messages of transformers:
https://huggingface.co/docs/transformers/chat_extras
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from legato_gateway.errors import BadRequest
from legato_gateway.openai.schemas import ChatMessage, FunctionCall
from legato_gateway.parsers.harmony.tokens import FAMILY as HARMONY
from legato_gateway.parsers.tool_calls.sections import DEEPSEEK, KIMI
from legato_gateway.tokenizer.chat_template import UnreadArguments, WrittenArguments

_ARGUMENTS = msgspec.json.Decoder(dict[str, Any])
_MISTRAL_ID: Final = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def templated(messages: Sequence[ChatMessage], family: str | None) -> list[dict[str, Any]]:
    """Converts messages, which were checked except for their calls. Raises BadRequest with the path of an error."""
    conversation = _Conversation(family)
    return [conversation.take(message, f"messages[{number}]") for number, message in enumerate(messages)]


def calls(messages: Sequence[ChatMessage]) -> int:
    """Returns the number of calls in messages."""
    return sum(len(message.tool_calls or ()) + (message.function_call is not None) for message in messages)


class _Conversation:
    """Tracks the calls made so far: a result must belong to one of them."""

    def __init__(self, family: str | None) -> None:
        self._family = family
        self._names: dict[str, str] = {}  # names of called functions, by call id
        self._numbered: dict[str, str] = {}  # Kimi K2's ids of calls, by call id

    def take(self, message: ChatMessage, at: str) -> dict[str, Any]:
        made: dict[str, Any] = {"role": message.role, "content": text(message)}
        if message.name is not None:
            made["name"] = message.name
        if message.role == "developer":
            made["role"] = "system"  # its older name
        elif message.role == "assistant":
            if (thought := message.reasoning or message.reasoning_content) is not None:
                made |= {"reasoning_content": thought, "reasoning": thought}  # templates read one of the two
            if calls := self._calls(message, at):
                made["tool_calls"] = calls
        elif message.role == "tool":
            made |= self._result(message, at)
        elif message.role == "function":
            made |= self._older_result(message, at)
        return made

    def _calls(self, message: ChatMessage, at: str) -> list[dict[str, Any]]:
        calls = []
        for number, call in enumerate(message.tool_calls or ()):
            if call.type != "function":
                text = f"not a valid type: {call.type[:40]!r} (function)"
                raise BadRequest(f"{at}.tool_calls[{number}].type: {text}", param=f"{at}.tool_calls[{number}].type")
            calls.append(self._call(call.id, call.function, f"{at}.tool_calls[{number}].function"))
        if message.function_call is not None:
            calls.append(
                self._call(_older_id(message.function_call.name), message.function_call, f"{at}.function_call")
            )
        return calls

    def _call(self, id: str, function: FunctionCall, at: str) -> dict[str, Any]:
        self._names[id] = function.name
        self._numbered[id] = f"functions.{function.name}:{len(self._numbered)}"
        shown: dict[str, Any] = {"name": function.name, "arguments": _arguments(function.arguments)}
        if self._family in (DEEPSEEK, HARMONY):  # templates append arguments to text, or the model's own are best
            shown["arguments"] = WrittenArguments(function.arguments.strip() or "{}")
        return {"id": self._id(id), "type": "function", "function": shown}

    def _result(self, message: ChatMessage, at: str) -> dict[str, Any]:
        id = message.tool_call_id
        if id is None:
            raise BadRequest(f"{at}.tool_call_id is missing", param=f"{at}.tool_call_id")
        if id not in self._names:
            text = f"{at}.tool_call_id: no call of an earlier message has this id: {id[:60]!r}"
            raise BadRequest(text, param=f"{at}.tool_call_id")
        return {"tool_call_id": self._id(id), "name": message.name or self._names[id]}

    def _older_result(self, message: ChatMessage, at: str) -> dict[str, Any]:
        id = _older_id(message.name or "")
        if id not in self._names:
            text = f"{at}.name: no earlier message has called this function: {(message.name or '')[:60]!r}"
            raise BadRequest(text, param=f"{at}.name")
        return {"role": "tool", "tool_call_id": self._id(id), "name": message.name}

    def _id(self, id: str) -> str:
        """Returns the id for the template: Mistral's only take nine letters and digits; Kimi K2's ids name the call."""
        if self._family == KIMI:
            return self._numbered.get(id, id)
        if self._family != "Mistral" or _MISTRAL_ID.fullmatch(id):
            return id
        return "".join(_LETTERS[byte % len(_LETTERS)] for byte in hashlib.sha256(id.encode()).digest()[:9])


def _arguments(written: str) -> dict[str, Any]:
    """Parses arguments for a template. Models do not always write a JSON object, and an answer may be truncated."""
    try:
        return _ARGUMENTS.decode(written.strip() or "{}")
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return UnreadArguments(written)


def _older_id(name: str) -> str:
    return f"function:{name}"


def text(message: ChatMessage) -> str:
    """Returns the content as one text, without calls: parts of an answer joined, others on separate lines."""
    content, between = message.content or "", "" if message.role == "assistant" else "\n"
    return content if isinstance(content, str) else between.join(part.text or "" for part in content)
