"""Request bodies of OpenAI's API with vLLM's extensions. Types and ranges only; `params` interprets them.

Every field of OpenAI's and vLLM's requests is here; others are refused. Fields of missing features are here so that
`unsupported` can name them. `Raw` fields stay JSON: they may be long, and their readers bound them. Lists are tuples:
garbage collection skips tuples of plain values, so a large number of them does not stall the process.
"""

from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from legato_gateway.request import MAX_NAME_CHARACTERS, PRIORITY
from legato_gateway.serving.openapi import json_schema
from legato_protocol.sampling.limits import (
    LARGEST_COUNT,
    LOGIT_BIAS,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_STOP_TOKENS,
    RANGES,
    Interval,
)

MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_WORD_CHARACTERS = 256  # per entry of bad_words
MAX_MESSAGES = 2048  # OpenAI's
MAX_CONTENT_PARTS = 2048  # per message
MAX_CALLS = 128  # per message

Absent = Annotated[Raw | UnsetType, "refused"]  # a feature that this server does not have
Extra = Annotated[Raw | UnsetType, "ignored by name"]  # an extra that does not change an answer's meaning
NoEffect = Raw | UnsetType  # changes nothing about an answer here, whatever its value


@cache
def marked(schema: type[msgspec.Struct], mark: Any) -> tuple[str, ...]:
    """Returns the fields of a schema whose type is this one, such as `Absent`."""
    return tuple(field.name for field in msgspec.structs.fields(schema) if field.type == mark)


def whole(limits: Interval) -> Meta:
    return Meta(ge=int(limits.least), le=int(limits.most), description=f"a whole number from {limits}")


def number(limits: Interval) -> Meta:
    return Meta(ge=limits.least, le=limits.most, description=f"a number from {limits}")


def _text(least: int, most: int) -> Meta:
    return Meta(min_length=least, max_length=most, description=f"text of {least} to {most} characters")


TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Stop = Annotated[str, _text(1, MAX_STOP_CHARACTERS)]
Stops = Annotated[tuple[Stop, ...], Meta(max_length=MAX_STOPS)]
StopTokens = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_STOP_TOKENS)]
AllowedTokens = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_ALLOWED_TOKENS)]
BadWord = Annotated[str, _text(1, MAX_WORD_CHARACTERS)]
BadWords = Annotated[tuple[BadWord, ...], Meta(max_length=MAX_BAD_WORDS)]
Biases = Annotated[dict[str, float], Meta(max_length=MAX_BIASES)]  # `params` checks keys and values
_STOPS = f"text of 1 to {MAX_STOP_CHARACTERS} characters, or up to {MAX_STOPS} of them in a list"


class ContentPart(msgspec.Struct, frozen=True, gc=False):
    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, frozen=True, gc=False):
    name: str
    arguments: str  # JSON


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    id: str
    function: FunctionCall
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True, gc=False):
    role: str
    content: str | Annotated[tuple[ContentPart, ...], Meta(max_length=MAX_CONTENT_PARTS)] | None = None
    name: str | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], Meta(max_length=MAX_CALLS)] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    reasoning_content: str | None = None  # its reasoning, under either name
    reasoning: str | None = None
    audio: Absent = UNSET


Messages = Annotated[tuple[ChatMessage, ...], Meta(min_length=1, max_length=MAX_MESSAGES)]
TokenIds = Annotated[tuple[TokenId, ...], Meta(min_length=1)]
Texts = Annotated[tuple[str, ...], Meta(min_length=1, max_length=MAX_CHOICES)]
TokenIdLists = Annotated[tuple[TokenIds, ...], Meta(min_length=1, max_length=MAX_CHOICES)]
_PROMPTS = {"anyOf": [json_schema(kind) for kind in (str, TokenIds, Texts, TokenIdLists)]}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # changes no answer
    continuous_usage_stats: bool | None = None  # vLLM's


class SamplingBody(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that chats and completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: Annotated[StreamOptions | None, Meta(description="an object such as {include_usage: true}")] = None
    n: Annotated[int, whole(Interval(1, MAX_CHOICES))] | None = None
    max_tokens: Annotated[int, whole(RANGES["max_tokens"])] | None = None
    stop: Annotated[Stop | Stops | None, Meta(description=_STOPS)] = None
    seed: Annotated[int | None, Meta(description=f"a whole number from {RANGES['seed']}")] = None
    temperature: Annotated[float, number(RANGES["temperature"])] | None = None
    top_p: Annotated[float, number(RANGES["top_p"])] | None = None
    presence_penalty: Annotated[float, number(RANGES["presence_penalty"])] | None = None
    frequency_penalty: Annotated[float, number(RANGES["frequency_penalty"])] | None = None
    logit_bias: Annotated[
        Biases | None, Meta(description=f"up to {MAX_BIASES} token ids, each with a number from {LOGIT_BIAS}")
    ] = None
    user: Annotated[str, _text(0, MAX_NAME_CHARACTERS)] | None = None
    # vLLM's
    top_k: Annotated[int, whole(RANGES["top_k"]._replace(least=-1))] | None = None
    min_p: Annotated[float, number(RANGES["min_p"])] | None = None
    repetition_penalty: Annotated[float, number(RANGES["repetition_penalty"])] | None = None
    min_tokens: Annotated[int, whole(RANGES["min_tokens"])] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[StopTokens | None, Meta(description=f"up to {MAX_STOP_TOKENS} token ids in a list")] = (
        None
    )
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[int, whole(Interval(-1, LARGEST_COUNT))] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    priority: Annotated[int, whole(PRIORITY)] | None = None  # lower goes first, as in vLLM
    cache_salt: Annotated[str, _text(1, MAX_NAME_CHARACTERS)] | None = None
    allowed_token_ids: Annotated[
        AllowedTokens | None, Meta(description=f"1 to {MAX_ALLOWED_TOKENS} token ids in a list")
    ] = None
    bad_words: Annotated[
        BadWords | None,
        Meta(description=f"up to {MAX_BAD_WORDS} texts of 1 to {MAX_WORD_CHARACTERS} characters in a list"),
    ] = None
    # read by `structured_output`
    response_format: Raw | UnsetType = UNSET
    structured_outputs: Raw | UnsetType = UNSET
    guided_json: Raw | UnsetType = UNSET
    guided_regex: Raw | UnsetType = UNSET
    guided_choice: Raw | UnsetType = UNSET
    guided_grammar: Raw | UnsetType = UNSET
    prompt_logprobs: Annotated[int, whole(Interval(0, MAX_LOGPROBS))] | None = None
    # features that this server does not have
    use_beam_search: Absent = UNSET
    kv_transfer_params: Absent = UNSET
    logits_processors: Absent = UNSET
    stop_regex: Absent = UNSET  # SGLang's
    vllm_xargs: Absent = UNSET
    # without effect on an answer
    metadata: NoEffect = UNSET
    service_tier: NoEffect = UNSET
    store: NoEffect = UNSET
    early_stopping: NoEffect = UNSET  # of beam search, like the next
    length_penalty: NoEffect = UNSET
    request_id: NoEffect = UNSET
    spaces_between_special_tokens: NoEffect = UNSET


class ChatBody(SamplingBody, frozen=True, kw_only=True):
    messages: Annotated[Raw, Meta(extra_json_schema=json_schema(Messages))]
    max_completion_tokens: Annotated[int, whole(RANGES["max_tokens"])] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, whole(Interval(0, MAX_LOGPROBS))] | None = None
    # vLLM's
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None
    echo: bool | None = None
    tools: Raw | UnsetType = UNSET  # these are read by `tools.definitions`
    tool_choice: Raw | UnsetType = UNSET
    parallel_tool_calls: bool | None = None
    functions: Raw | UnsetType = UNSET
    function_call: Raw | UnsetType = UNSET
    include_reasoning: bool | None = None
    chat_template_kwargs: Raw | UnsetType = UNSET  # these two are read by `reasoning.template_variables`
    reasoning_effort: str | None = None
    thinking_token_budget: Annotated[int, whole(RANGES["min_tokens"]._replace(least=-1))] | None = None
    modalities: Raw | UnsetType = UNSET  # only text
    verbosity: Raw | UnsetType = UNSET  # ignored by name unless medium
    prediction: Extra = UNSET
    web_search_options: Extra = UNSET
    # features that this server does not have
    audio: Absent = UNSET
    chat_template: Absent = UNSET
    documents: Absent = UNSET
    mm_processor_kwargs: Absent = UNSET
    moderation: Absent = UNSET
    # without effect on an answer
    prompt_cache_key: NoEffect = UNSET
    prompt_cache_options: NoEffect = UNSET
    prompt_cache_retention: NoEffect = UNSET
    safety_identifier: NoEffect = UNSET


class CompletionBody(SamplingBody, frozen=True, kw_only=True):
    prompt: Annotated[Raw, Meta(extra_json_schema=_PROMPTS)]
    max_tokens: Annotated[int, whole(RANGES["max_tokens"]._replace(least=0))] | None = None  # 0 only with `echo`
    echo: bool | None = None
    logprobs: Annotated[int, whole(Interval(0, MAX_LOGPROBS))] | None = None
    best_of: Annotated[int, whole(Interval(1, MAX_CHOICES))] | None = None
    add_special_tokens: bool | None = None
    # features that this server does not have
    suffix: Absent = UNSET
    prompt_embeds: Absent = UNSET
