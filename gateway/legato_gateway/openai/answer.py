"""How an answer is read: what of a model's text the user is to see, and what of it is reasoning and calls."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legato_gateway.openai.tools.definitions import CallFormat
from legato_gateway.parsers.reasoning.families import FAMILIES
from legato_gateway.parsers.reasoning.parser import ReasoningParser
from legato_gateway.parsers.reasoning.support import ReasoningFormat
from legato_gateway.parsers.tool_calls.families import CallParser
from legato_gateway.parsers.tool_calls.said import CallArguments, CallStart, Piece, Place, Text
from legato_gateway.request import TokenText

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What may be in the answers of one request."""

    calls: CallFormat | None = None  # None: there are none
    reasoning: ReasoningFormat | None = None

    @property
    def is_plain(self) -> bool:
        """All of the text is for the user."""
        return self.calls is None and self.reasoning is None

    @property
    def tells_reasoning(self) -> bool:
        """Messages say what the model reasoned."""
        return self.reasoning is not None and self.reasoning.told

    def reader(self) -> "AnswerReader":
        """One for a choice."""
        return AnswerReader(self)


class AnswerReader:
    """One choice's text, read as it comes, and how OpenAI spells what is in it."""

    def __init__(self, format: AnswerFormat) -> None:
        calls, reasoning = format.calls, format.reasoning
        self._told = format.tells_reasoning
        self._reasoning = ReasoningParser(FAMILIES[reasoning.family], reasoning.begun) if reasoning else None
        self._untold: list[TokenText] = []
        self._calls = calls
        self._parser = CallParser(calls.written or calls.family, calls.names) if calls else None
        self._content_read = 0  # characters
        self._most = None if calls is None or (calls.parallel and not calls.older) else 1  # calls that are told

    def push(self, text: str, finish: str | None) -> list[dict[str, Any]]:
        """The fields of a delta for each thing that is new; `finish` comes with the last of the text."""
        return [fields for fields, _ in self.read(text, finish)]

    def read(self, text: str, finish: str | None) -> list[tuple[dict[str, Any], Sequence[Place]]]:
        """As `push`, with the places in the choice's text where the content of each was."""
        found: list[tuple[dict[str, Any], Sequence[Place]]] = []
        if self._reasoning is not None:
            reasoning, text = self._reasoning.push(text)
            if finish is not None:
                last_reasoning, last_text = self._reasoning.finish()
                reasoning, text = reasoning + last_reasoning, text + last_text
            if reasoning and self._told:
                found.append(({"reasoning_content": reasoning, "reasoning": reasoning}, ()))
        return found + self._content(text, finish)

    @property
    def passed(self) -> int:
        """No content that is told from now on was before this place in the choice's text."""
        if self._reasoning is not None and self._reasoning.content_at is None:
            return self._reasoning.passed
        return self._content_at + (self._parser.said.passed if self._parser is not None else self._content_read)

    def finish_reason(self, finish: str | None) -> str | None:
        """OpenAI's, where `finish` is why the text ended."""
        if finish != "stop" or self._calls is None or self._parser is None or not self._parser.said.calls:
            return finish
        return "function_call" if self._calls.older else "tool_calls"

    def told(self, tokens: Sequence[TokenText]) -> Sequence[TokenText]:
        """Those that the client may know by now of these and earlier ones: none of reasoning that it is not told."""
        if self._reasoning is None or self._told:
            return tokens
        self._untold += tokens
        at = self._reasoning.content_at
        if at is None:
            return ()
        found = [token for token in self._untold if token.offset + len(token.text) > at]
        self._untold.clear()
        return found

    @property
    def _content_at(self) -> int:
        """Where in the choice's text content begins."""
        return (self._reasoning.content_at or 0) if self._reasoning is not None else 0

    def _content(self, text: str, finish: str | None) -> list[tuple[dict[str, Any], Sequence[Place]]]:
        begin = self._content_read
        self._content_read += len(text)
        if self._parser is None:
            return [self._text_fields(Text(text, ((begin, begin + len(text)),)))] if text else []
        pieces = self._parser.push(text)
        if finish is not None:
            pieces += self._parser.finish()
        return [
            self._text_fields(piece) if isinstance(piece, Text) else (self._call_fields(piece), ())
            for piece in pieces
            if self._is_shown(piece)
        ]

    def _is_shown(self, piece: Piece) -> bool:
        """False for calls above the limit, and for the markup of a required call that was cut off."""
        assert self._calls is not None
        if isinstance(piece, Text):
            return not self._calls.written
        return self._most is None or piece.index < self._most

    def _text_fields(self, piece: Text) -> tuple[dict[str, Any], Sequence[Place]]:
        first = self._content_at
        return {"content": piece.text}, [(begin + first, end + first) for begin, end in piece.places]

    def _call_fields(self, piece: CallStart | CallArguments) -> dict[str, Any]:
        older = self._calls is not None and self._calls.older
        if isinstance(piece, CallStart):
            function = {"name": piece.name, "arguments": ""}
            whole = {"index": piece.index, "id": self._new_id(), "type": "function", "function": function}
            return {"function_call": function} if older else {"tool_calls": [whole]}
        function = {"arguments": piece.text}
        more = {"index": piece.index, "function": function}
        return {"function_call": function} if older else {"tool_calls": [more]}

    def _new_id(self) -> str:
        """Mistral's templates take ids of nine letters and digits only."""
        if self._calls is not None and self._calls.family == "Mistral":
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def message(deltas: list[dict[str, Any]], tells_reasoning: bool) -> dict[str, Any]:
    """The message that these deltas make up."""
    content = "".join(delta.get("content", "") for delta in deltas)
    found: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if tells_reasoning:
        reasoning = "".join(delta.get("reasoning", "") for delta in deltas) or None
        found |= {"reasoning_content": reasoning, "reasoning": reasoning}
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
    if not content and (calls or "function_call" in found or found.get("reasoning")):
        found["content"] = None
    return found
