"""`POST /v1/completions`: converts its body to one relay request per prompt. `writer` writes its answers."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from legato_gateway.errors import BadRequest
from legato_gateway.openai import extras, params, prompt_logprobs, structured_output, unsupported
from legato_gateway.openai.chat import answer_start
from legato_gateway.openai.completions.prompts import Prompt, prompts
from legato_gateway.openai.completions.writer import CompletionWriter, Shown
from legato_gateway.openai.schemas import CompletionBody
from legato_gateway.openai.sse import ResponseHead, new_id
from legato_gateway.serving.bodies import parsing
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.serving.prepared_request import Asked, CollectedChoice, PreparedRequest

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
    serving = serving.salted(options.cache_salt)
    wanted = 1 if body.max_tokens == 0 else body.max_tokens  # computing the prompt takes one token
    context = serving.model.context
    keep = params.kept_tokens(body, context, wanted or DEFAULT_MAX_TOKENS)
    given = prompts(body.prompt, context, keep is not None)
    best = parse_best_of(body)
    params.check_choices(len(given), best.made, "best_of" if best.ranks else "n")
    head = ResponseHead(new_id("cmpl"), int(time.time()), served)
    logprobs = body.logprobs or 0 if best.ranks else body.logprobs
    requests, special = [], body.add_special_tokens is not False
    for number, prompt in enumerate(given):
        ids = _ids(serving, prompt, special, keep)
        most = params.limit(wanted, len(ids), serving.model, DEFAULT_MAX_TOKENS, "prompt")
        sampling = params.sampling(body, serving, most, logprobs, grammar)
        id = head.id if len(given) == 1 else f"{head.id}-{number}"
        shown, explains = serving.shown_tokens(body.skip_special_tokens), logprobs is not None
        requests.append(
            params.request(serving, id, ids, sampling, body, options, shown, choices=best.made, explains_end=explains)
        )
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
) -> CompletionWriter:
    usage = bool(body.stream_options and body.stream_options.include_usage)
    shown = Shown(body.max_tokens != 0, body.logprobs, body.prompt_logprobs, body.n or 1)
    asks = extras.asked(body, kept, prompt_in_choice=True)
    return CompletionWriter(head, usage, shown, serving.tokens.token_bytes, echoes, asks)


def _ids(serving: ModelServing, prompt: Prompt, special: bool, keep: int | None) -> tuple[int, ...]:
    if isinstance(prompt, str):
        with serving.tokenizing("prompt"):
            encode, salt = serving.tokens.encode, serving.cache_salt
            ids = tuple(encode(prompt, special, serving.model.context, keep, salt=salt))
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
class BestOf:
    """Numbers of answers per prompt: `made` by workers, and `sent` to the client."""

    made: int
    sent: int

    @property
    def ranks(self) -> bool:
        """True if answers must be compared, by their tokens' log probabilities."""
        return self.made > self.sent

    def chosen(self, answers: Sequence[CollectedChoice]) -> list[CollectedChoice]:
        """Returns the answers to send, numbered again: by prompt, the best first, and among equals the first made.

        The mean includes the token that ends an answer. An answer without any token comes last.
        """
        ranked: list[CollectedChoice] = []
        for start in range(0, len(answers), self.made):
            best = sorted(answers[start : start + self.made], key=_mean_logprob, reverse=True)
            ranked += best[: self.sent]
        return [replace(answer, index=index) for index, answer in enumerate(ranked)]


def parse_best_of(body: CompletionBody) -> BestOf:
    """Raises BadRequest for fewer answers than requested, and for streams: the best are known at the end."""
    sent = body.n or 1
    made = sent if body.best_of is None else body.best_of
    if made < sent:
        raise BadRequest(f"best_of is {made}, less than n = {sent}", param="best_of")
    if made > sent and body.stream:
        raise BadRequest(f"best_of is {made}, more than n = {sent}: this cannot be streamed", param="best_of")
    return BestOf(made, sent)


def _mean_logprob(answer: CollectedChoice) -> float:
    logprobs = [token.logprobs.logprob for token in answer.tokens if token.logprobs is not None]
    return math.fsum(logprobs) / len(logprobs) if logprobs else -math.inf
