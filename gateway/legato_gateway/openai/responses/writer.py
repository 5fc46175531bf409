"""Writes responses and their streams of events."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.json import encode

from legato_gateway.errors import GatewayError
from legato_gateway.openai.chat.answer import AnswerFormat, AnswerReader
from legato_gateway.openai.chat.text_tokens import TextTokens
from legato_gateway.openai.responses.output import Fields, OutputItems, ResponseEvents
from legato_gateway.openai.responses.tools import CalledTool
from legato_gateway.openai.sse import logprob_fields
from legato_gateway.request import Delta, TokenText, Usage
from legato_gateway.serving.prepared_request import CollectedChoice

_CUT_OFF = {"reason": "max_output_tokens"}


class ResponseWriter:
    """Writes one response, which is one choice. `asked` are the fields known from the start.

    `tools` are the tools that may be called, by the names of their functions.
    """

    def __init__(
        self,
        asked: Mapping[str, Any],
        logprobs: bool,
        token_bytes: Callable[[int], bytes],
        format: AnswerFormat,
        tools: Mapping[str, CalledTool],
    ) -> None:
        self._asked = asked
        self._logprobs = logprobs
        self._token_bytes = token_bytes
        self._reader: AnswerReader | None = None if format.is_plain else format.reader()
        self._tokens = TextTokens()
        self._events = ResponseEvents()
        self._items = OutputItems(self._events, tools)
        self._started = False
        self._finish: str | None = None
        self.keep: Callable[[Fields], None] | None = None  # gets the whole response before the client has its last part

    def begin(self) -> bytes:
        if self._started:
            return b""
        self._started = True
        response = self._fields("in_progress", [])
        return self._events.event("created", response=response) + self._events.event("in_progress", response=response)

    def delta(self, index: int, delta: Delta) -> bytes:
        return self.begin() + self._read(delta.text, delta.tokens, delta.finish)

    def end(self, usage: Usage) -> bytes:
        said = self.begin()
        response = self._response(usage)
        return said + self._events.event(response["status"], response=response)

    def failed(self, error: GatewayError) -> bytes:
        said = self.begin()
        what = {"code": error.code or error.type, "message": error.message}
        if not error.permanent:
            what["part"] = error.part
        response = self._fields("failed", output=self._items.cut_off(), error=what)
        return said + self._events.event("failed", response=response)

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        for answer in answers:
            self._read("".join(answer.text), answer.tokens, answer.finish)
        return encode(self._response(usage))

    def _response(self, usage: Usage) -> Fields:
        if self._finish == "length":
            response = self._fields("incomplete", self._items.done, incomplete_details=_CUT_OFF)
        else:
            response = self._fields("completed", self._items.done, completed_at=int(time.time()))
        response["usage"] = usage_fields(usage)
        if self.keep is not None:
            self.keep(response)
        return response

    def _read(self, text: str, tokens: Sequence[TokenText], finish: str | None) -> bytes:
        """Returns the events of new text, and with `finish` the last events too."""
        explained = [token for token in tokens if self._logprobs and token.logprobs]
        if self._reader is None:
            said = self._items.delta({"content": text}, self._logprob_list(explained)) if text or explained else b""
        else:
            said = self._parsed(self._reader, text, explained, finish)
        if finish is None:
            return said
        self._finish = finish
        return said + self._items.close("incomplete" if finish == "length" else "completed")

    def _parsed(self, reader: AnswerReader, text: str, tokens: Sequence[TokenText], finish: str | None) -> bytes:
        """Reads text into items. Log probabilities go with messages only: other items have no field for them."""
        self._tokens.add(tokens)
        parts = reader.read(text, finish)
        said = [self._items.delta(fields, self._logprob_list(self._tokens.take(places))) for fields, places in parts]
        self._tokens.drop(reader.passed)
        return b"".join(said)

    def _logprob_list(self, tokens: Sequence[TokenText]) -> list[Fields]:
        return [logprob_fields(token, self._token_bytes) for token in tokens]

    def _fields(self, status: str, output: Sequence[Fields], **known: Any) -> Fields:
        late = {"error": None, "incomplete_details": None, "usage": None, "completed_at": None}
        return {**self._asked, "status": status, "output": output, **late, **known}


def usage_fields(usage: Usage) -> Fields:
    """Returns the usage in this API's format. Clients cannot request writes to the prefix cache: there are 0."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
