"""`POST /v1/completions`: converts its body to one relay request per prompt, and writes its answers."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from legato_gateway.errors import BadRequest, GatewayError
from legato_gateway.json_encoding import encode
from legato_gateway.openai import (
    extras,
    params,
    prompt_logprobs,
    structured_output,
    token_choice,
    truncation,
    unsupported,
)
from legato_gateway.openai.chat import answer_start
from legato_gateway.openai.completions import best_of
from legato_gateway.openai.completions.prompts import Prompt, prompts
from legato_gateway.openai.extras import NO_EXTRAS, Extras, StreamExtras
from legato_gateway.openai.schemas import CompletionBody
from legato_gateway.openai.sse import ChunkEncoder, ResponseHead, finite, new_id, stop_reason, usage_fields
from legato_gateway.prompt_scores import PromptScores
from legato_gateway.request import Delta, TokenText, Usage
from legato_gateway.serving.bodies import parsing
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.serving.prepared_request import Asked, PreparedRequest
from legato_gateway.serving.writer import CollectedChoice

KIND = "text_completion"
DEFAULT_MAX_TOKENS = 16  # OpenAI's


def prepare(serving: ModelServing, asked: Asked, raw: bytearray) -> PreparedRequest:
    """Checks and tokenizes a request. Raises GatewayError for faults of the client.

    Slow for long prompts: it runs in another thread or process, so its arguments are picklable.
    """
    body = parsing.parse(CompletionBody, raw)
    served = serving.check_model(body.model)
    _check(body)
    scored = prompt_logprobs.asked(body)
    grammar = structured_output.parse(body)
    options = params.options(asked, body)
    wanted = 1 if body.max_tokens == 0 else body.max_tokens  # computing the prompt takes one token
    context = serving.model.context
    keep = truncation.kept(body, context, wanted or DEFAULT_MAX_TOKENS)
    given = prompts(body.prompt, context, keep is not None)
    best = best_of.parse(body)
    params.check_choices(len(given), best.made, "best_of" if best.ranks else "n")
    head = ResponseHead(new_id("cmpl"), int(time.time()), served)
    logprobs = body.logprobs or 0 if best.ranks else body.logprobs
    requests, special = [], body.add_special_tokens is not False
    for number, prompt in enumerate(given):
        ids = _ids(serving, prompt, special, keep)
        most = params.limit(wanted, len(ids), serving.model, DEFAULT_MAX_TOKENS, "prompt")
        sampling = params.sampling(body, serving.limits, most, logprobs, grammar)
        sampling = replace(token_choice.restricted(sampling, body, serving), prompt_logprobs=scored)
        id = head.id if len(given) == 1 else f"{head.id}-{number}"
        made = params.request(
            id,
            ids,
            sampling,
            body,
            options,
            serving.shown_tokens(body.skip_special_tokens),
            choices=best.made,
            adapter=serving.adapter(body.model),
        )
        made = params.with_special_stops(made, serving.tokens.special_ids)
        requests.append(dataclasses.replace(made, explains_end=logprobs is not None))
    kept = tuple(request.prompt for request in requests)
    prompt_logprobs.check_size(body, scored, sum(map(len, kept)) * (body.n or 1))
    echoes = [_echo(serving, *each, special, keep) for each in zip(given, kept, strict=True)] if body.echo else []
    answer_start.check_echo(sum(map(len, echoes)), body.n or 1)
    return PreparedRequest(
        requests=tuple(requests),
        writer=_writer(serving, body, head, kept, echoes),
        stream=bool(body.stream),
        explain=options.explain,
        id=head.id,
        model=served.name,
        choose=best.chosen if best.ranks else None,
    )


def _check(body: CompletionBody) -> None:
    unsupported.check_completion(body)
    if body.max_tokens == 0 and not body.echo:
        raise BadRequest("max_tokens is 0, which leaves nothing to return without echo: true", param="max_tokens")


def _writer(
    serving: ModelServing,
    body: CompletionBody,
    head: ResponseHead,
    kept: tuple[tuple[int, ...], ...],
    echoes: Sequence[str],
) -> "CompletionWriter":
    usage = bool(body.stream_options and body.stream_options.include_usage)
    shown = Shown(body.max_tokens != 0, body.logprobs, body.prompt_logprobs, body.n or 1)
    asks = extras.asked(body, kept, prompt_in_choice=True)
    return CompletionWriter(head, usage, shown, serving.tokens.token_bytes, echoes, asks)


def _ids(serving: ModelServing, prompt: Prompt, special: bool, keep: int | None) -> tuple[int, ...]:
    if isinstance(prompt, str):
        with serving.tokenizing("prompt"):
            ids = tuple(serving.tokens.encode(prompt, special, serving.model.context, keep))
    else:
        ids = prompt if keep is None else prompt[-keep:]
    serving.check_prompt(ids, "prompt")
    return ids


def _echo(serving: ModelServing, prompt: Prompt, kept: tuple[int, ...], special: bool, keep: int | None) -> str:
    """Returns the text of the kept part of a prompt, without tokens that the tokenizer adds around a text."""
    if isinstance(prompt, str):
        if keep is None:
            return prompt
        before, after = serving.tokens.special_around if special else ((), ())
        kept = kept[len(before) : len(kept) - len(after)]
    return b"".join(map(serving.tokens.token_bytes, kept)).decode(errors="replace")


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
            first = self._stream.begin(index)
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
        """Returns text, tokens and finish reason; no text or tokens if one was only generated to compute the prompt."""
        if self._shown.answer:
            return delta.text, delta.tokens, delta.finish
        return "", (), delta.finish and "length"

    def _used(self, usage: Usage) -> Usage:
        return usage if self._shown.answer else dataclasses.replace(usage, completion_tokens=0)

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._shown.choices] if self._echoes else ""

    def _echoed(self, index: int, scores: PromptScores | None) -> dict[str, list[Any]] | None:
        """Returns the logprobs of the prompt; None unless the answer starts with it and they are requested."""
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
