"""Writes messages and the events of their streams: blocks of reasoning, text and calls, one after another.

A message that is not streamed is built from the events of its stream, so that both are equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pydantic_core
from msgspec.json import encode

from legato_gateway.anthropic import errors
from legato_gateway.errors import GatewayError
from legato_gateway.openai.chat.answer import AnswerFormat, AnswerReader
from legato_gateway.parsers.tool_calls.said import BREAK
from legato_gateway.request import Delta, Usage
from legato_gateway.serving.prepared_request import CollectedChoice

_Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The parts of an answer that are known before it starts.

    `fills_context`: its token limit is the model's context, not the client's `max_tokens`.
    """

    id: str
    model: str
    prompt_tokens: int
    fills_context: bool

    def fields(self) -> dict[str, Any]:
        """Returns the fields of an empty message."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(Usage(self.prompt_tokens)),
        }


class BlockEvents:
    """Reads one answer's text as it comes, and returns the events of its blocks."""

    def __init__(self, format: AnswerFormat) -> None:
        self._reader: AnswerReader | None = None if format.is_plain else format.reader()
        self._open = ""  # type of the open block
        self._index = -1

    def push(self, text: str, finish: str | None) -> list[_Event]:
        """Returns the new events; `finish` comes with the last of the text."""
        if self._reader is None:
            deltas: list[dict[str, Any]] = [{"content": text}] if text else []
        else:
            deltas = self._reader.push(text, finish)
        events: list[_Event] = []
        for delta in deltas:
            self._add(delta, events)
        if finish is not None:
            self._close(events)
        return events

    def stop_reason(self, finish: str | None, stop: str | None, fills_context: bool) -> str:
        """Returns Anthropic's stop reason. `finish` is why the text ended, `stop` the stop sequence that ended it."""
        if stop is not None:
            return "stop_sequence"
        if finish == "length":
            return "model_context_window_exceeded" if fills_context else "max_tokens"
        called = self._reader is not None and self._reader.finish_reason(finish) == "tool_calls"
        return "tool_use" if called else "end_turn"

    def _add(self, delta: dict[str, Any], events: list[_Event]) -> None:
        if thought := delta.get("reasoning"):
            if self._open != "thinking":
                self._start({"type": "thinking", "thinking": "", "signature": ""}, events)
            events.append(self._more({"type": "thinking_delta", "thinking": thought}))
        if (text := delta.get("content")) and (text != BREAK or self._open == "text"):  # a new block is a break
            if self._open != "text":
                self._start({"type": "text", "text": ""}, events)
            events.append(self._more({"type": "text_delta", "text": text}))
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                id = f"toolu_{call['id'].removeprefix('call_')}"
                block = {"type": "tool_use", "id": id, "name": call["function"]["name"], "input": {}}
                self._start(block, events)
            if arguments := call["function"]["arguments"]:
                events.append(self._more({"type": "input_json_delta", "partial_json": arguments}))

    def _start(self, block: dict[str, Any], events: list[_Event]) -> None:
        self._close(events)
        self._open = block["type"]
        self._index += 1
        events.append({"type": "content_block_start", "index": self._index, "content_block": block})

    def _more(self, delta: dict[str, Any]) -> _Event:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def _close(self, events: list[_Event]) -> None:
        if self._open:
            self._open = ""
            events.append({"type": "content_block_stop", "index": self._index})


class MessagesWriter:
    """Writes messages and the events of their streams, with one choice."""

    def __init__(self, head: MessageHead, format: AnswerFormat) -> None:
        self._head = head
        self._format = format
        self._blocks = BlockEvents(format)
        self._started = False
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None

    def begin(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        return _event({"type": "message_start", "message": self._head.fields()})

    def delta(self, index: int, delta: Delta) -> bytes:
        start = self.begin()
        said = self._blocks.push(delta.text, delta.finish)
        if delta.finish is not None:
            self._stop_sequence = delta.stop
            fills = self._head.fills_context and not delta.late
            self._stop_reason = self._blocks.stop_reason(delta.finish, delta.stop, fills)
        return start + b"".join(map(_event, said))

    def end(self, usage: Usage) -> bytes:
        why = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        last = {"type": "message_delta", "delta": why, "usage": _usage(usage)}
        return _event(last) + _event({"type": "message_stop"})

    def failed(self, error: GatewayError) -> bytes:
        return b"event: error\ndata: " + errors.body(error) + b"\n\n"

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        (answer,) = answers
        blocks = BlockEvents(self._format)
        content = gathered(blocks.push("".join(answer.text), answer.finish or "stop"))
        why = blocks.stop_reason(answer.finish, answer.stop, self._head.fills_context and not answer.late)
        rest = {"content": content, "stop_reason": why, "stop_sequence": answer.stop, "usage": _usage(usage)}
        return encode(self._head.fields() | rest)


class PrefixWriter(MessagesWriter):
    """Writes the answer to `max_tokens: 0`, which only computes the prompt: the one token generated is left out."""

    def delta(self, index: int, delta: Delta) -> bytes:
        return super().delta(index, Delta(index, "", finish=delta.finish and "length"))

    def end(self, usage: Usage) -> bytes:
        return super().end(replace(usage, completion_tokens=0))

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        shown = [CollectedChoice(answer.index, finish="length") for answer in answers]
        return super().whole(shown, replace(usage, completion_tokens=0))


def gathered(events: Sequence[_Event]) -> list[dict[str, Any]]:
    """Returns the blocks that these events describe."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], blocks[-1]
            if delta["type"] == "text_delta":
                block["text"] += delta["text"]
            elif delta["type"] == "thinking_delta":
                block["thinking"] += delta["thinking"]
            else:
                inputs[event["index"]] = inputs.get(event["index"], "") + delta["partial_json"]
    for index, written in inputs.items():
        blocks[index]["input"] = _input(written)
    return blocks


def _input(written: str) -> dict[str, Any]:
    """Parses the arguments of a call. Truncated ones are parsed as far as they are complete, as clients do.

    Anything but a JSON object is returned in the form that Anthropic documents for tool streaming.
    """
    try:
        parsed = pydantic_core.from_json(written, allow_inf_nan=False, allow_partial=True)
    except ValueError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": written}


def _usage(usage: Usage) -> dict[str, Any]:
    """Returns the usage. Cached tokens are counted separately."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


def _event(fields: _Event) -> bytes:
    kind: str = fields["type"]
    return b"event: " + kind.encode() + b"\ndata: " + encode(fields) + b"\n\n"
