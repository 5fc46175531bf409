"""How an answer is read: what of a model's text the user is to see, and what of it is calls."""

import secrets
from dataclasses import dataclass
from typing import Any

from legato_gateway.openai.tools.definitions import CallFormat
from legato_gateway.openai.tools.families import CallParser
from legato_gateway.openai.tools.said import CallStart, Piece

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What may be in the answers of one request."""

    calls: CallFormat | None = None  # None: there are none

    @property
    def is_plain(self) -> bool:
        """All of the text is for the user."""
        return self.calls is None

    def reader(self) -> "AnswerReader":
        """One for a choice."""
        assert self.calls is not None, "plain answers are not read"
        return AnswerReader(self.calls)


class AnswerReader:
    """One choice's text, read as it comes, and how OpenAI spells what is in it."""

    def __init__(self, calls: CallFormat) -> None:
        self._calls = calls
        self._parser = CallParser(calls.written or calls.family, calls.names)
        self._most = None if calls.parallel and not calls.older else 1  # calls that are told

    def push(self, text: str, finish: str | None) -> list[dict[str, Any]]:
        """The fields of a delta for each thing that is new; `finish` comes with the last of the text."""
        pieces = self._parser.push(text)
        if finish is not None:
            pieces += self._parser.finish()
        return [self._fields(piece) for piece in pieces if self._is_told(piece)]

    def finish_reason(self, finish: str | None) -> str | None:
        """OpenAI's, where `finish` is why the text ended."""
        if finish != "stop" or not self._parser.said.calls:
            return finish
        return "function_call" if self._calls.older else "tool_calls"

    def _is_told(self, piece: Piece) -> bool:
        return isinstance(piece, str) or self._most is None or piece.index < self._most

    def _fields(self, piece: Piece) -> dict[str, Any]:
        if isinstance(piece, str):
            return {"content": piece}
        if isinstance(piece, CallStart):
            function = {"name": piece.name, "arguments": ""}
            whole = {"index": piece.index, "id": self._new_id(), "type": "function", "function": function}
            return {"function_call": function} if self._calls.older else {"tool_calls": [whole]}
        function = {"arguments": piece.text}
        more = {"index": piece.index, "function": function}
        return {"function_call": function} if self._calls.older else {"tool_calls": [more]}

    def _new_id(self) -> str:
        """Mistral's templates take ids of nine letters and digits only."""
        if self._calls.family == "Mistral":
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def message(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that these deltas make up."""
    content = "".join(delta.get("content", "") for delta in deltas)
    found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({key: value for key, value in call.items() if key != "index"})
                calls[-1]["function"] = dict(call["function"])
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        if older := delta.get("function_call"):
            begun = found.setdefault("function_call", {"name": older.get("name"), "arguments": ""})
            begun["arguments"] += older["arguments"]
    if calls:
        found["tool_calls"] = calls
    if not content and (calls or "function_call" in found):
        found["content"] = None
    return found
