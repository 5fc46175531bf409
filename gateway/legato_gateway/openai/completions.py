"""`POST /v1/completions`: from its body to requests of the relay, one per prompt, and how its answers are spelled."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from legato_gateway.errors import GatewayError
from legato_gateway.openai import bodies, params, structured_output, token_choice, unsupported
from legato_gateway.openai.generation_response import PreparedRequest
from legato_gateway.openai.params import Asked
from legato_gateway.openai.prompts import Prompt, prompts
from legato_gateway.openai.schemas import CompletionBody
from legato_gateway.openai.serving import ModelServing, new_id
from legato_gateway.openai.sse import ChunkEncoder, CollectedChoice, ResponseHead, encode, finite, usage_fields
from legato_gateway.request import Delta, TokenText, Usage

KIND = "text_completion"
DEFAULT_MAX_TOKENS = 16  # OpenAI's


def prepare(serving: ModelServing, asked: Asked, raw: bytearray) -> PreparedRequest:
    """Checks and tokenizes. Slow for long prompts: it runs in another thread or process, so all that it is given is
    picklable. Raises what the client is told."""
    body = bodies.parse(CompletionBody, raw)
    serving.check_model(body.model)
    unsupported.check_completion(body)
    grammar = structured_output.of(body)
    options = params.options(asked, body)
    given = prompts(body.prompt, serving.model.context)
    params.check_choices(len(given), body.n or 1)
    head = ResponseHead(new_id("cmpl"), int(time.time()), serving.model)
    requests = []
    for number, prompt in enumerate(given):
        ids = _ids(serving, prompt, body.add_special_tokens is not False)
        most = params.limit(body.max_tokens, len(ids), serving.model.context, DEFAULT_MAX_TOKENS, "prompt")
        sampling = params.sampling(body, serving.limits, most, body.logprobs, grammar)
        sampling = token_choice.restricted(sampling, body, serving)
        id = head.id if len(given) == 1 else f"{head.id}-{number}"
        requests.append(params.request(id, ids, sampling, body, options))
    echoes = [_echo(serving, prompt) for prompt in given] if body.echo else []
    usage = bool(body.stream_options and body.stream_options.include_usage)
    logprobs = body.logprobs is not None
    return PreparedRequest(
        requests=tuple(requests),
        writer=CompletionWriter(head, usage, logprobs, serving.tokens.token_bytes, echoes, body.n or 1),
        stream=bool(body.stream),
        explain=options.explain,
        id=head.id,
        model=serving.model.name,
    )


def _ids(serving: ModelServing, prompt: Prompt, special: bool) -> tuple[int, ...]:
    with serving.tokenizing("prompt"):
        most = serving.model.context
        ids = tuple(serving.tokens.encode(prompt, special, most)) if isinstance(prompt, str) else prompt
    serving.check_prompt(ids, "prompt")
    return ids


def _echo(serving: ModelServing, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(map(serving.tokens.token_bytes, prompt)).decode(errors="replace")


class CompletionWriter:
    """Text completions and their chunks. `echoes` are the prompts' texts, if answers are to begin with them."""

    def __init__(
        self,
        head: ResponseHead,
        include_usage: bool,
        logprobs: bool,
        token_bytes: Callable[[int], bytes],
        echoes: Sequence[str],
        choices: int,
    ) -> None:
        self._head = head
        self._events = ChunkEncoder(head, KIND, include_usage)
        self._logprobs = logprobs
        self._token_bytes = token_bytes
        self._echoes = echoes
        self._choices = choices
        self._begun: set[int] = set()

    def delta(self, index: int, delta: Delta) -> bytes:
        said = b""
        if self._echoes and index not in self._begun:
            self._begun.add(index)
            said = self._events.chunk(index, b'"text":' + encode(self._echo(index)), b"null", None)
        shown = self._logprobs and bool(delta.tokens)
        if not (delta.text or shown or delta.finish):
            return said
        logprobs = encode(self._logprob_fields(delta.tokens)) if shown else b"null"
        return said + self._events.chunk(index, b'"text":' + encode(delta.text), logprobs, delta.finish)

    def end(self, usage: Usage) -> bytes:
        return self._events.end(usage)

    def failed(self, error: GatewayError) -> bytes:
        return self._events.failed(error)

    def whole(self, answers: Sequence[CollectedChoice], usage: Usage) -> bytes:
        choices = [
            {
                "index": answer.index,
                "text": self._echo(answer.index) + "".join(answer.text),
                "logprobs": self._logprob_fields(answer.tokens) if self._logprobs else None,
                "finish_reason": answer.finish,
            }
            for answer in answers
        ]
        return encode({**self._head.fields(KIND), "choices": choices, "usage": usage_fields(usage)})

    def _echo(self, index: int) -> str:
        return self._echoes[index // self._choices] if self._echoes else ""

    def _logprob_fields(self, tokens: Sequence[TokenText]) -> dict[str, Any]:
        fields: dict[str, Any] = {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for token in tokens:
            if token.logprobs is None:
                continue
            text, own = token.raw.decode(errors="replace"), finite(token.logprobs.logprob)
            fields["text_offset"].append(token.offset)
            fields["token_logprobs"].append(own)
            fields["tokens"].append(text)
            top = {self._text(best.token): finite(best.logprob) for best in reversed(token.logprobs.top)}
            fields["top_logprobs"].append({**top, text: own})
        return fields

    def _text(self, token: int) -> str:
        return self._token_bytes(token).decode(errors="replace")
