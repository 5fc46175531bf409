"""Reads an answer: separates text for the user, reasoning, and calls."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legato_gateway.openai.chat.text_tokens import TextTokens
from legato_gateway.openai.chat.tool_definitions import CallFormat
from legato_gateway.parsers.reasoning.parser import FAMILIES, ReasoningParser
from legato_gateway.parsers.reasoning.support import ReasoningFormat
from legato_gateway.parsers.tool_calls.families import CallParser
from legato_gateway.parsers.tool_calls.said import CallArguments, CallStart, Piece, Place, Text, Thought
from legato_gateway.request import TokenText

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """The parts that answers to one request may have."""

    calls: CallFormat | None = None  # None: no calls
    reasoning: ReasoningFormat | None = None

    @property
    def is_plain(self) -> bool:
        """True if all of the text is for the user."""
        return self.calls is None and self.reasoning is None

    @property
    def shows_reasoning(self) -> bool:
        """True if messages contain the model's reasoning."""
        return self.reasoning is not None and self.reasoning.shown

    def reader(self) -> "AnswerReader":
        """Returns a reader for one choice."""
        return AnswerReader(self)


class AnswerReader:
    """Reads one choice's text as it comes, and formats its parts as OpenAI does."""

    def __init__(self, format: AnswerFormat) -> None:
        calls, reasoning = format.calls, format.reasoning
        marks = FAMILIES.get(reasoning.family) if reasoning else None
        self._shows_reasoning = format.shows_reasoning
        self._reasoning = ReasoningParser(marks, reasoning.open_in_prompt) if reasoning and marks else None
        self._pending: list[TokenText] = []
        self._in_channels = reasoning is not None and marks is None
        self._texts, self._places = TextTokens(), list[Place]()
        self._calls = calls
        self._parser = _parser(calls, reasoning if marks is None else None)
        self._content_read = 0  # characters
        # Number of calls that are shown; None: all.
        self._most = None if calls is None or (calls.parallel and not calls.older) else 1

    def push(self, text: str, finish: str | None) -> list[dict[str, Any]]:
        """Returns the fields of a delta for each new part; `finish` comes with the last text."""
        return [fields for fields, _ in self.read(text, finish)]

    def read(self, text: str, finish: str | None) -> list[tuple[dict[str, Any], Sequence[Place]]]:
        """Returns the same as `push`, each with the places of its content in the choice's text."""
        parts: list[tuple[dict[str, Any], Sequence[Place]]] = []
        if self._reasoning is not None:
            reasoning, text = self._reasoning.push(text)
            if finish is not None:
                last_reasoning, last_text = self._reasoning.finish()
                reasoning, text = reasoning + last_reasoning, text + last_text
            if reasoning and self._shows_reasoning:
                parts.append((_thought_fields(reasoning), ()))
        return parts + self._content(text, finish)

    @property
    def passed(self) -> int:
        """Offset in the choice's text. All later content comes from after it."""
        if self._reasoning is not None and self._reasoning.content_at is None:
            return self._reasoning.passed
        return self._content_at + (self._parser.said.passed if self._parser is not None else self._content_read)

    def finish_reason(self, finish: str | None) -> str | None:
        """Returns OpenAI's finish reason; `finish` is the reason why the text ended."""
        if finish != "stop" or self._calls is None or self._parser is None or not self._parser.said.calls:
            return finish
        return "function_call" if self._calls.older else "tool_calls"

    def visible(self, tokens: Sequence[TokenText]) -> Sequence[TokenText]:
        """Returns the tokens, new and pending, that the client may see: all but hidden reasoning."""
        if self._in_channels and not self._shows_reasoning:
            self._texts.add(tokens)
            shown = self._texts.take(self._places)
            self._places.clear()
            return shown
        if self._reasoning is None or self._shows_reasoning:
            return tokens
        self._pending += tokens
        at = self._reasoning.content_at
        if at is None:
            return ()
        shown = [token for token in self._pending if token.offset + len(token.text) > at]
        self._pending.clear()
        return shown

    @property
    def _content_at(self) -> int:
        """Offset in the choice's text where content starts."""
        return (self._reasoning.content_at or 0) if self._reasoning is not None else 0

    def _content(self, text: str, finish: str | None) -> list[tuple[dict[str, Any], Sequence[Place]]]:
        begin = self._content_read
        self._content_read += len(text)
        if self._parser is None:
            return [self._text_fields(Text(text, ((begin, begin + len(text)),)))] if text else []
        pieces = self._parser.push(text)
        if finish is not None:
            pieces += self._parser.finish(finish == "stop")
        parts = [self._fields(piece) for piece in pieces if self._is_shown(piece)]
        self._places += [place for _, places in parts for place in places] if self._in_channels else ()
        return parts

    def _is_shown(self, piece: Piece) -> bool:
        """True unless `piece` is hidden reasoning, a call above the limit, or markup of a required call that was cut
        off."""
        if isinstance(piece, Text):
            return self._calls is None or not self._calls.written
        if isinstance(piece, Thought):
            return self._shows_reasoning
        return self._most is None or piece.index < self._most

    def _fields(self, piece: Piece) -> tuple[dict[str, Any], Sequence[Place]]:
        if isinstance(piece, Text):
            return self._text_fields(piece)
        return (_thought_fields(piece.text) if isinstance(piece, Thought) else self._call_fields(piece)), ()

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
        """Returns an id for a call. Mistral's templates accept only ids of nine letters and digits."""
        if self._calls is not None and self._calls.family == "Mistral":
            return "".join(secrets.choice(_LETTERS) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def _parser(calls: CallFormat | None, channels: ReasoningFormat | None) -> CallParser | None:
    """Returns the parser of the content: of calls, or of all `channels`."""
    if channels is not None:
        return CallParser(channels.family, calls.functions if calls else {}, channels.header)
    return CallParser(calls.written or calls.family, calls.functions) if calls else None


def _thought_fields(text: str) -> dict[str, Any]:
    return {"reasoning_content": text, "reasoning": text}


def message(deltas: list[dict[str, Any]], shows_reasoning: bool) -> dict[str, Any]:
    """Returns the message that consists of these deltas."""
    content = "".join(delta.get("content", "") for delta in deltas)
    made: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if shows_reasoning:
        reasoning = "".join(delta.get("reasoning", "") for delta in deltas) or None
        made |= {"reasoning_content": reasoning, "reasoning": reasoning}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                calls.append({key: value for key, value in call.items() if key != "index"})
                calls[-1]["function"] = dict(call["function"])
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        if older := delta.get("function_call"):
            call = made.setdefault("function_call", {"name": older.get("name"), "arguments": ""})
            call["arguments"] += older["arguments"]
    if calls:
        made["tool_calls"] = calls
    if not content and (calls or "function_call" in made or made.get("reasoning")):
        made["content"] = None
    return made
