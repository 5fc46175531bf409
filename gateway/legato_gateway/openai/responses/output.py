"""The output items of one response as they grow, and their events, in OpenAI's order and with its fields.

The model's text comes in as the fields of chat deltas, so both APIs read it alike.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Raw
from msgspec.json import encode

from legato_gateway.openai.responses.tools import CalledTool, custom_input
from legato_gateway.parsers.tool_calls.said import BREAK

Status = Literal["completed", "incomplete"]
Fields = dict[str, Any]
_NO_LOGPROBS: Final = Raw(b"[]")


def item_id(prefix: str) -> str:
    """Returns an id in the Responses API's format."""
    return f"{prefix}_{secrets.token_hex(16)}"


class ResponseEvents:
    """Encodes and numbers the events of one response."""

    def __init__(self) -> None:
        self._next = 0

    def event(self, kind: str, **fields: Any) -> bytes:
        """Returns one event of type `response.` and `kind`."""
        number, self._next = self._next, self._next + 1
        data = encode({"type": f"response.{kind}", "sequence_number": number, **fields})
        return b"%b%b\n\n" % (self._named(kind), data)

    def stem(self, kind: str, **fields: Any) -> bytes:
        """Returns the common beginning of events of one kind, for `grown`."""
        return self._named(kind) + encode({"type": f"response.{kind}", **fields})[:-1] + b',"sequence_number":'

    def grown(self, stem: bytes, rest: bytes) -> bytes:
        """Returns an event that starts with `stem`. `rest` is the JSON of its other fields, as in `"delta":"Paris"`."""
        number, self._next = self._next, self._next + 1
        return b"%b%d,%b}\n\n" % (stem, number, rest)

    @staticmethod
    def _named(kind: str) -> bytes:
        return b"event: response.%b\ndata: " % kind.encode()


class _Text:
    """A message."""

    def __init__(self, events: ResponseEvents, at: int) -> None:
        self._events = events
        self._id, self._at = item_id("msg"), at
        self._text: list[str] = []
        self._logprobs: list[bytes] = []  # JSON without brackets: as objects, one token's take kilobytes
        self._stem = events.stem("output_text.delta", **self._place)

    def begin(self) -> bytes:
        said = self._events.event("output_item.added", output_index=self._at, item=self._item("in_progress", []))
        part = self._part("", _NO_LOGPROBS)
        return said + self._events.event("content_part.added", **self._place, part=part)

    def grow(self, text: str, logprobs: Sequence[Fields]) -> bytes:
        self._text.append(text)
        encoded = encode(logprobs)
        if logprobs:
            self._logprobs.append(encoded[1:-1])
        return self._events.grown(self._stem, b'"delta":%b,"logprobs":%b' % (encode(text), encoded))

    def close(self, status: Status) -> tuple[bytes, Fields]:
        item = self.item(status)
        (part,) = item["content"]
        place, event = self._place, self._events.event
        said = (
            event("output_text.done", **place, text=part["text"], logprobs=part["logprobs"]),
            event("content_part.done", **place, part=part),
            event("output_item.done", output_index=self._at, item=item),
        )
        return b"".join(said), item

    def item(self, status: Status) -> Fields:
        return self._item(status, [self._part("".join(self._text), Raw(b"[%b]" % b",".join(self._logprobs)))])

    @property
    def _place(self) -> Fields:
        return {"item_id": self._id, "output_index": self._at, "content_index": 0}

    def _part(self, text: str, logprobs: Raw) -> Fields:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _item(self, status: str, content: Sequence[Fields]) -> Fields:
        return {"type": "message", "id": self._id, "status": status, "role": "assistant", "content": content}


class _Reasoning:
    """The model's reasoning before its answer."""

    def __init__(self, events: ResponseEvents, at: int) -> None:
        self._events = events
        self._id, self._at = item_id("rs"), at
        self._text: list[str] = []
        self._stem = events.stem("reasoning_text.delta", **self._place)

    def begin(self) -> bytes:
        said = self._events.event("output_item.added", output_index=self._at, item=self._item("in_progress", []))
        return said + self._events.event("content_part.added", **self._place, part=self._part(""))

    def grow(self, text: str) -> bytes:
        self._text.append(text)
        return self._events.grown(self._stem, b'"delta":' + encode(text))

    def close(self, status: Status) -> tuple[bytes, Fields]:
        item = self.item(status)
        (part,) = item["content"]
        said = self._events.event("reasoning_text.done", **self._place, text=part["text"])
        said += self._events.event("content_part.done", **self._place, part=part)
        return said + self._events.event("output_item.done", output_index=self._at, item=item), item

    def item(self, status: Status) -> Fields:
        return self._item(status, [self._part("".join(self._text))])

    @property
    def _place(self) -> Fields:
        return {"item_id": self._id, "output_index": self._at, "content_index": 0}

    def _part(self, text: str) -> Fields:
        return {"type": "reasoning_text", "text": text}

    def _item(self, status: str, content: Sequence[Fields]) -> Fields:
        return {"type": "reasoning", "id": self._id, "status": status, "summary": [], "content": content}


class _Call:
    """A call of a function."""

    prefix, kind, key, grows = "fc", "function_call", "arguments", "function_call_arguments"

    def __init__(self, events: ResponseEvents, at: int, id: str, tool: CalledTool) -> None:
        self._events = events
        self._id, self._at, self._call_id, self._tool = item_id(self.prefix), at, id, tool
        self._arguments: list[str] = []
        self._stem = events.stem(f"{self.grows}.delta", **self._place)

    def begin(self) -> bytes:
        return self._events.event("output_item.added", output_index=self._at, item=self._item("in_progress", ""))

    def grow(self, arguments: str) -> bytes:
        self._arguments.append(arguments)
        return self._more(arguments)

    def close(self, status: Status) -> tuple[bytes, Fields]:
        item = self.item(status)
        said = self._events.event(f"{self.grows}.done", **self._place, **self._done(), **{self.key: item[self.key]})
        return said + self._events.event("output_item.done", output_index=self._at, item=item), item

    def item(self, status: Status) -> Fields:
        return self._item(status, "".join(self._arguments))

    def _more(self, text: str) -> bytes:
        return self._events.grown(self._stem, b'"delta":' + encode(text))

    def _done(self) -> Fields:
        return {"name": self._tool.name}

    @property
    def _place(self) -> Fields:
        return {"item_id": self._id, "output_index": self._at}

    def _item(self, status: str, said: str) -> Fields:
        known = {"call_id": self._call_id, "name": self._tool.name, self.key: said}
        if self._tool.namespace is not None:
            known["namespace"] = self._tool.namespace
        return {"type": self.kind, "id": self._id, "status": status, **known}


class _CustomCall(_Call):
    """A call of a custom tool. Its input is part of the arguments, and is sent once they are complete."""

    prefix, kind, key, grows = "ctc", "custom_tool_call", "input", "custom_tool_call_input"

    def grow(self, arguments: str) -> bytes:
        self._arguments.append(arguments)
        return b""

    def close(self, status: Status) -> tuple[bytes, Fields]:
        said = self._more(custom_input("".join(self._arguments)))
        done, item = super().close(status)
        return said + done, item

    def item(self, status: Status) -> Fields:
        return self._item(status, custom_input("".join(self._arguments)))

    def _done(self) -> Fields:
        return {}


class OutputItems:
    """All output items. Each method returns the events of its changes."""

    def __init__(self, events: ResponseEvents, tools: Mapping[str, CalledTool]) -> None:
        self.done: list[Fields] = []
        self._events = events
        self._tools = tools
        self._open: _Text | _Reasoning | _Call | None = None

    def delta(self, fields: Mapping[str, Any], logprobs: Sequence[Fields] = ()) -> bytes:
        """Applies a chat delta with these fields."""
        said = self._reasoning(fields["reasoning"]) if "reasoning" in fields else b""
        said += self._text(fields["content"], logprobs) if "content" in fields else b""
        for call in fields.get("tool_calls", ()):
            said += self._call(call)
        return said

    def close(self, status: Status) -> bytes:
        """Ends the open item. An answer without items is an empty message."""
        said = b"" if self.done or self._open is not None else self._text("", ())
        return said + self._close(status)

    def cut_off(self) -> list[Fields]:
        """Returns the items so far, when nothing more will follow."""
        return self.done if self._open is None else [*self.done, self._open.item("incomplete")]

    def _text(self, text: str, logprobs: Sequence[Fields]) -> bytes:
        said = b""
        if not isinstance(self._open, _Text):
            if text == BREAK and not logprobs:
                return said  # a new item is a break
            said = self._close("completed")
            self._open = _Text(self._events, len(self.done))
            said += self._open.begin()
        return said + self._open.grow(text, logprobs) if text or logprobs else said

    def _reasoning(self, text: str) -> bytes:
        said = b""
        if not isinstance(self._open, _Reasoning):
            said = self._close("completed")
            self._open = _Reasoning(self._events, len(self.done))
            said += self._open.begin()
        return said + self._open.grow(text)

    def _call(self, call: Mapping[str, Any]) -> bytes:
        said, function = b"", call["function"]
        if "id" in call:
            said = self._close("completed")
            tool = self._tools.get(function["name"]) or CalledTool(function["name"])
            self._open = (_CustomCall if tool.custom else _Call)(self._events, len(self.done), call["id"], tool)
            said += self._open.begin()
        assert isinstance(self._open, _Call), "arguments without a call"
        return said + self._open.grow(function["arguments"]) if function["arguments"] else said

    def _close(self, status: Status) -> bytes:
        if self._open is None:
            return b""
        said, item = self._open.close(status)
        self._open = None
        self.done.append(item)
        return said
