"""Writes text completions and their chunks: text, log probabilities, and the prompt if it is echoed."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.json import encode

from legato_gateway.errors import GatewayError
from legato_gateway.openai import prompt_logprobs
from legato_gateway.openai.extras import NO_EXTRAS, Extras, StreamExtras
from legato_gateway.openai.sse import ChunkEncoder, ResponseHead, finite, stop_reason, usage_fields
from legato_gateway.request import Delta, PromptScores, TokenText, Usage
from legato_gateway.serving.prepared_request import CollectedChoice

KIND = "text_completion"


@dataclass(frozen=True, slots=True)
class Shown:
    """The requested parts of an answer: text after the prompt, alternatives per token, and choices per prompt."""

    answer: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    choices: int = 1


class CompletionWriter:
    """Writes text completions and their chunks. `echoes` are the prompts' texts, if answers start with them."""

    def __init__(
        self,
        head: ResponseHead,
        include_usage: bool,
        shown: Shown,
        token_bytes: Callable[[int], bytes],
        echoes: Sequence[str],
        extras: Extras = NO_EXTRAS,
    ) -> None:
        self._head = head
        self._events = ChunkEncoder(head, KIND, include_usage)
        self._shown = shown
        self._token_bytes = token_bytes
        self._echoes = echoes
        self._extras = extras
        self._names = extras.names(token_bytes)
        self._stream = StreamExtras(extras)
        self._started: set[int] = set()

    def begin(self) -> bytes:
        return b""

    def delta(self, index: int, delta: Delta) -> bytes:
        events = b""
        if self._echoes and index not in self._started:
            self._started.add(index)
            fields = self._echoed(index, delta.scores)
            logprobs = encode(fields) if fields else b"null"
            first = self._stream.take(index)
            events = self._events.chunk(index, b'"text":' + encode(self._echo(index)), logprobs, None, first)
        text, tokens, finish = self._shown_parts(delta)
        shown = self._shown.logprobs is not None and bool(tokens)
        extra = self._stream.take(index, delta.token_ids if self._shown.answer else ())
        if not (text or shown or finish or extra.choice):
            return events
        logprobs = encode(self._logprob_fields(index, tokens)) if shown else b"null"
        stop = stop_reason(delta) if self._shown.answer else None
        return events + self._events.chunk(index, b'"text":' + encode(text), logprobs, finish, extra, stop)

    def end(self, usage: Usage) -> bytes:
        return self._events.end(self._used(usage))

    def failed(self, error: GatewayError) -> bytes:
        return self._events.failed(error)

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        choices = [self._choice(answer) for answer in answers]
        return encode({**self._head.fields(KIND), "choices": choices, "usage": usage_fields(self._used(usage))})

    def _choice(self, answer: CollectedChoice) -> dict[str, Any]:
        index, shown = answer.index, self._shown
        text, _, finish = self._shown_parts(Delta(index, "".join(answer.text), (), answer.finish))
        choice = {
            "index": index,
            "text": self._echo(index) + text,
            "logprobs": self._logprobs(answer) if shown.logprobs is not None else None,
            "finish_reason": finish,
            "stop_reason": stop_reason(answer) if shown.answer else None,
            **self._extras.choice_fields(answer if shown.answer else dataclasses.replace(answer, token_ids=[])),
        }
        if shown.prompt_logprobs is not None and answer.scores is not None:
            choice["prompt_logprobs"] = prompt_logprobs.listed(answer.scores, shown.prompt_logprobs, self._token_bytes)
        return choice

    def _logprobs(self, answer: CollectedChoice) -> dict[str, Any]:
        fields = self._logprob_fields(answer.index, answer.tokens if self._shown.answer else ())
        before = self._echoed(answer.index, answer.scores)
        return {name: before[name] + values for name, values in fields.items()} if before else fields

    def _shown_parts(self, delta: Delta) -> tuple[str, tuple[TokenText, ...], str | None]:
        """Returns text, tokens and finish reason; only the reason if `max_tokens` is 0."""
        if self._shown.answer:
            return delta.text, delta.tokens, delta.finish
        return "", (), delta.finish and "length"

    def _used(self, usage: Usage) -> Usage:
        return usage if self._shown.answer else dataclasses.replace(usage, completion_tokens=0)

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._shown.choices] if self._echoes else ""

    def _echoed(self, index: int, scores: PromptScores | None) -> dict[str, list[Any]] | None:
        """Returns the prompt's logprobs; None unless the answer echoes the prompt and logprobs are requested."""
        most = self._shown.logprobs
        if not self._echoes or scores is None or most is None:
            return None
        return prompt_logprobs.echoed(scores, most, self._token_bytes, self._echo(index), self._names)

    def _logprob_fields(self, index: int, tokens: Sequence[TokenText]) -> dict[str, list[Any]]:
        fields: dict[str, list[Any]] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        begin = len(self._echo(index))
        for token in tokens:
            if token.logprobs is None:
                continue
            own, top = token.logprobs.logprob, tuple((best.token, best.logprob) for best in token.logprobs.top)
            fields["text_offset"].append(begin + token.offset)
            fields["token_logprobs"].append(finite(own))
            fields["tokens"].append(self._extras.token_name(token.token, token.raw))
            fields["top_logprobs"].append(prompt_logprobs.likeliest(top, token.token, own, self._names))
        return fields
