"""Writes chat completions and their chunks: text, reasoning, calls, log probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.json import encode

from legato_gateway.errors import GatewayError
from legato_gateway.openai import prompt_logprobs
from legato_gateway.openai.chat import answer
from legato_gateway.openai.chat.answer import AnswerFormat, AnswerReader
from legato_gateway.openai.chat.answer_start import NEW_MESSAGE, ChatStart
from legato_gateway.openai.extras import NO_EXTRAS, Extras, StreamExtras
from legato_gateway.openai.sse import ChunkEncoder, ChunkExtra, ResponseHead, logprob_fields, stop_reason, usage_fields
from legato_gateway.request import Delta, TokenText, Usage
from legato_gateway.serving.prepared_request import CollectedChoice

KIND = "chat.completion"
_NOTHING = b'"delta":{}'


@dataclass(frozen=True, slots=True)
class RequestedParts:
    """The requested parts of an answer other than its message; `prompt_logprobs` are alternatives per prompt token."""

    usage: bool = False  # in streams
    logprobs: bool = False
    prompt_logprobs: int | None = None


class ChatWriter:
    """Writes chat completions and their chunks."""

    def __init__(
        self,
        head: ResponseHead,
        shown: RequestedParts,
        token_bytes: Callable[[int], bytes],
        format: AnswerFormat,
        extras: Extras = NO_EXTRAS,
        start: ChatStart = NEW_MESSAGE,
    ) -> None:
        self._head = head
        self._events = ChunkEncoder(head, f"{KIND}.chunk", shown.usage)
        self._logprobs = shown.logprobs
        self._token_bytes = token_bytes
        self._format = format
        self._prompt_logprobs = shown.prompt_logprobs
        self._extras = extras
        self._start = start
        self._stream = StreamExtras(extras)
        self._started: set[int] = set()
        self._readers: dict[int, AnswerReader] = {}

    def begin(self) -> bytes:
        return b""  # the chunk with the role comes with the first token: clients measure the token's time by it

    def delta(self, index: int, delta: Delta) -> bytes:
        events = b""
        if index not in self._started:
            self._started.add(index)
            events = self._begin(index)
        extra, shown = self._stream.take(index, delta.token_ids), self._logprobs and bool(delta.tokens)
        if not (delta.text or shown or delta.finish or extra.choice):
            return events
        if not self._format.is_plain:
            return events + self._read(index, delta, extra)
        logprobs = encode(self._logprob_fields(delta.tokens)) if shown else b"null"
        content = b'"delta":{"content":' + encode(delta.text) + b"}" if delta.text or shown else _NOTHING
        return events + self._events.chunk(index, content, logprobs, delta.finish, extra, stop_reason(delta))

    def _begin(self, index: int) -> bytes:
        first = b'"delta":' + encode({"role": self._start.role, "content": ""})
        events = self._events.chunk(index, first, b"null", None, self._stream.take(index))
        if self._start.echo:
            echoed = b'"delta":' + encode({"content": self._start.echo})
            events += self._events.chunk(index, echoed, b"null", None, self._stream.take(index))
        return events

    def _read(self, index: int, delta: Delta, extra: ChunkExtra) -> bytes:
        """Returns an event per new part of the text; token ids, logprobs and the finish reason go with the last."""
        reader = self._readers.get(index)
        if reader is None:
            reader = self._readers[index] = self._format.reader()
        parts = [b'"delta":' + encode(fields) for fields in reader.push(delta.text, delta.finish)]
        tokens = reader.visible(delta.tokens) if self._logprobs else ()
        logprobs = encode(self._logprob_fields(tokens)) if tokens else b"null"
        if not parts:
            if logprobs == b"null" and delta.finish is None and not extra.choice:
                return b""
            parts = [_NOTHING]
        before = extra._replace(choice=b"", chunk=b"")
        events = [self._events.chunk(index, fields, b"null", None, before) for fields in parts[:-1]]
        finish = reader.finish_reason(delta.finish)
        last = self._events.chunk(index, parts[-1], logprobs, finish, extra, stop_reason(delta))
        return b"".join([*events, last])

    def end(self, usage: Usage) -> bytes:
        return self._events.end(usage)

    def failed(self, error: GatewayError) -> bytes:
        return self._events.failed(error)

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        choices = [self._choice(collected) for collected in answers]
        whole = {
            **self._head.fields(KIND),
            "choices": choices,
            "usage": usage_fields(usage),
            **self._extras.answer_fields(),
        }
        if self._prompt_logprobs is not None and answers and (scores := answers[0].scores) is not None:
            whole["prompt_logprobs"] = prompt_logprobs.listed(scores, self._prompt_logprobs, self._token_bytes)
        return encode(whole)

    def _choice(self, collected: CollectedChoice) -> dict[str, Any]:
        reader, text = self._format.reader(), "".join(collected.text)
        deltas = reader.push(text, collected.finish or "stop")
        return {
            "index": collected.index,
            "message": self._message(deltas),
            "logprobs": self._logprob_fields(reader.visible(collected.tokens)) if self._logprobs else None,
            "finish_reason": reader.finish_reason(collected.finish),
            "stop_reason": stop_reason(collected),
            **self._extras.choice_fields(collected),
        }

    def _message(self, deltas: list[dict[str, Any]]) -> dict[str, Any]:
        message = answer.message(deltas, self._format.shows_reasoning)
        if self._start.echo:
            message["content"] = self._start.echo + (message["content"] or "")
        return message | {"role": self._start.role}

    def _logprob_fields(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        name = self._extras.token_name
        shown = [logprob_fields(token, self._token_bytes, name) for token in tokens if token.logprobs]
        return {"content": shown, "refusal": None}
