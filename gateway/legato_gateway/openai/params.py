"""Interprets a checked body: sampling parameters, limits, tenant, deadline. May raise, and awaits nothing."""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from legato_gateway.errors import BadRequest
from legato_gateway.openai import prompt_logprobs, token_choice
from legato_gateway.openai.schemas import ChatBody, SamplingBody
from legato_gateway.openai.structured_output import AnswerGrammar
from legato_gateway.request import PRIORITY, GenerationRequest
from legato_gateway.serving.deadline import Deadline
from legato_gateway.serving.model_serving import ModelServing, ServedModel, too_long
from legato_gateway.serving.prepared_request import Asked
from legato_protocol import names
from legato_protocol.sampling.limits import LOGIT_BIAS, MAX_CHOICES, RANGES
from legato_protocol.sampling.parameters import JSON_SCHEMA, SamplingParams
from legato_protocol.sampling.reasoning import ReasoningTokens

_N = TypeVar("_N", int, float)
_NAMED = 16  # wrong tokens that an error names


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of a request other than its content: from headers, with the body's fields as fallback."""

    deadline: Deadline
    tenant: str
    priority: int
    cache_salt: str
    explain: bool
    trace: str


def options(asked: Asked, body: SamplingBody) -> RequestOptions:
    """Reads the options. Raises BadRequest for a header value that is not allowed, or not to this client."""
    headers, client = asked.headers, asked.client
    priority = _priority(headers.get(names.HEADER_PRIORITY), body.priority)
    client.check_priority(priority)
    return RequestOptions(
        deadline=asked.deadline,
        tenant=client.tenant,
        priority=priority,
        cache_salt=client.cache_salt(body.cache_salt or ""),
        explain=headers.get(names.HEADER_EXPLAIN, "").lower() in ("true", "1", "yes"),
        trace=headers.get(names.HEADER_TRACE, ""),
    )


def sampling(
    body: SamplingBody, serving: ModelServing, max_tokens: int, logprobs: int | None, grammar: AnswerGrammar | None
) -> SamplingParams:
    """Returns the sampling parameters. Null means absent. Raises BadRequest for contradictory values."""
    if (body.min_tokens or 0) > max_tokens:
        raise BadRequest(f"min_tokens is {body.min_tokens}, more than max_tokens = {max_tokens}", param="min_tokens")
    defaults, vocabulary, model_ends = serving.model.defaults, serving.tokens.vocab_size, serving.eos_ids
    ends, least = () if body.ignore_eos else model_ends, body.min_tokens or 0
    if grammar is not None and grammar.ends:
        if not model_ends:
            text = f"{grammar.param} cannot be obeyed: this model has no token that ends an answer"
            raise BadRequest(text, param=grammar.param)
        # An answer that nothing can follow ends, whatever `ignore_eos` and `min_tokens` say.
        ends, least = model_ends, max_tokens if body.ignore_eos else least
    params = SamplingParams(
        max_tokens=max_tokens,
        seed=_seed(body.seed),
        temperature=_first(body.temperature, defaults.temperature, 1.0),
        top_k=max(0, _first(body.top_k, defaults.top_k, 0)),
        top_p=_first(body.top_p, defaults.top_p, 1.0),
        min_p=_first(body.min_p, defaults.min_p, 0.0),
        presence_penalty=_first(body.presence_penalty, 0.0),
        frequency_penalty=_first(body.frequency_penalty, 0.0),
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, 1.0),
        logit_bias=_biases(body.logit_bias or {}, vocabulary),
        logprobs=logprobs,
        stop_token_ids=tuple(dict.fromkeys((*ends, *_stop_tokens(body.stop_token_ids or (), vocabulary)))),
        min_tokens=least,
        grammar=grammar.source if grammar is not None else "",
        grammar_kind=grammar.kind if grammar is not None else JSON_SCHEMA,
        prompt_logprobs=prompt_logprobs.asked(body),
    )
    return token_choice.restricted(params, body, serving)


def limit(wanted: int | None, prompt_tokens: int, model: ServedModel, default: int | None, param: str) -> int:
    """Returns the maximum number of output tokens. Raises ContextLengthExceeded if they do not fit after the prompt."""
    room = model.context - prompt_tokens
    if room < 1 or (wanted is not None and wanted > room):
        asked = "" if wanted is None else f" and {wanted} of the answer"
        raise too_long(model.context, f"there are {prompt_tokens} tokens of the prompt{asked}", param)
    return min(wanted or default or room, model.max_output or room, room)


def request(
    serving: ModelServing,
    id: str,
    prompt: tuple[int, ...],
    params: SamplingParams,
    body: SamplingBody,
    options: RequestOptions,
    shown_tokens: frozenset[int],
    reasoning: ReasoningTokens | None = None,
    choices: int | None = None,
    explains_end: bool = False,
) -> GenerationRequest:
    """Returns the relay's request, with `choices` answers or else `n`. Raises DeadlineExceeded.

    Stop strings that are special tokens do not occur in text: they end it as tokens.
    """
    stop = tuple(dict.fromkeys((body.stop,) if isinstance(body.stop, str) else body.stop or ()))
    ends, special_ids = params.stop_token_ids, serving.tokens.special_ids
    specials = {special: text for text in stop for special in special_ids((text,)) if special not in ends}
    include_stop = bool(body.include_stop_str_in_output)
    return GenerationRequest(
        id=id,
        prompt=prompt,
        params=msgspec.structs.replace(params, stop_token_ids=(*ends, *specials)),
        deadline=options.deadline.left(),
        choices=choices or body.n or 1,
        model=body.model or "",
        adapter=serving.adapter(body.model),
        stop=stop,
        tenant=options.tenant,
        priority=options.priority,
        cache_salt=options.cache_salt,
        explain=options.explain,
        elapsed=options.deadline.elapsed(),
        patience=options.deadline.patience,
        operation="chat" if isinstance(body, ChatBody) else "text_completion",
        trace=options.trace,
        include_stop=include_stop,
        shown_tokens=shown_tokens.union(specials) if include_stop else shown_tokens,
        marked_tokens=serving.reasoning.marked if isinstance(body, ChatBody) else frozenset(),
        reasoning=reasoning,
        explains_end=explains_end,
        least_tokens=body.min_tokens or 0,
        own_stop_tokens=frozenset(body.stop_token_ids or ()),
        special_stops=specials,
    )


def check_choices(prompts: int, each: int, param: str) -> None:
    """Raises BadRequest for too many answers in one request, where `param` is the number per prompt."""
    if prompts * each > MAX_CHOICES:
        raise BadRequest(f"{prompts} prompts × {param} = {each} are more than {MAX_CHOICES} answers", param=param)


def _invalid(name: str, given: str, allowed: str) -> BadRequest:
    return BadRequest(f"not a valid {name}: {given[:40]!r} ({allowed})", param=name)


def _first(*values: _N | None) -> _N:
    """Returns the first value given: the request's, the model's default, or a neutral one."""
    return next(value for value in values if value is not None)


def _seed(given: int | None) -> int:
    if given is None:
        return secrets.randbits(63)
    if not RANGES["seed"].allows(given):
        raise _invalid("seed", str(given), f"a whole number from {RANGES['seed']}")
    return given % 2**64


def _priority(header: str | None, field: int | None) -> int:
    """Returns the priority: higher goes first. The body's field is vLLM's, where lower goes first."""
    if header is None:
        return -(field or 0)
    if not re.fullmatch(r"[+-]?[0-9]{1,4}", header.strip()) or not PRIORITY.allows(int(header)):
        raise _invalid(names.HEADER_PRIORITY, header, f"a whole number from {PRIORITY}")
    return int(header)


def _biases(biases: Mapping[str, float], vocabulary: int) -> dict[int, float]:
    """Converts the biases. Raises BadRequest with the first wrong tokens and biases."""
    keys = [key for key in biases if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocabulary)]
    if keys:
        text = f"not valid token ids in logit_bias: {_listed(map(repr, keys))} (0 to {vocabulary - 1})"
        raise BadRequest(text, param="logit_bias")
    values = [f"{bias} of {key}" for key, bias in biases.items() if not LOGIT_BIAS.allows(bias)]
    if values:
        raise BadRequest(f"not valid in logit_bias: {_listed(values)} ({LOGIT_BIAS})", param="logit_bias")
    return {int(key): bias for key, bias in biases.items()}


def _listed(wrong: Iterable[str]) -> str:
    texts = [text[:40] for text in wrong]
    more = [f"and {len(texts) - _NAMED} more"] if len(texts) > _NAMED else []
    return ", ".join(texts[:_NAMED] + more)


def _stop_tokens(ids: tuple[int, ...], vocabulary: int) -> tuple[int, ...]:
    for id in ids:
        if id >= vocabulary:
            raise BadRequest(
                f"not a valid token id in stop_token_ids: {id} (0 to {vocabulary - 1})", param="stop_token_ids"
            )
    return ids


def kept_tokens(body: SamplingBody, context: int, answer: int) -> int | None:
    """Returns the number of tokens to keep of each prompt, or None for all. Raises BadRequest if they leave no room.

    -1 keeps as many as leave room in the context for `answer` tokens.
    """
    given = body.truncate_prompt_tokens
    if given is None:
        return None
    room = max(1, context - answer)
    if given == 0 or given > room:
        raise BadRequest(
            f"not a valid truncate_prompt_tokens: {given} (-1, or 1 to {room}: the context has {context} tokens, "
            f"{answer} of them for the answer)",
            param="truncate_prompt_tokens",
        )
    return room if given == -1 else given
