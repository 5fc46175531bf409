"""`POST /v1/chat/completions`: converts its body to a relay request. `writer` writes its answers."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from legato_gateway.errors import BadRequest
from legato_gateway.openai import extras, params, prompt_logprobs, structured_output, unsupported
from legato_gateway.openai.chat import (
    answer_start,
    harmony_grammar,
    reasoning_bounds,
    template_variables,
    tool_definitions,
)
from legato_gateway.openai.chat import messages as chat_messages
from legato_gateway.openai.chat.answer import AnswerFormat
from legato_gateway.openai.chat.answer_start import ChatStart
from legato_gateway.openai.chat.call_marks import CallMarks
from legato_gateway.openai.chat.tool_definitions import OfferedTools
from legato_gateway.openai.chat.writer import ChatWriter, RequestedParts
from legato_gateway.openai.schemas import ChatBody, ChatMessage, Messages
from legato_gateway.openai.sse import ResponseHead, new_id
from legato_gateway.parsers.reasoning import parser as reasoning_parser
from legato_gateway.parsers.reasoning.support import ReasoningFormat
from legato_gateway.parsers.tool_calls.families import FAMILIES
from legato_gateway.request import GenerationRequest
from legato_gateway.serving.bodies import parsing
from legato_gateway.serving.model_serving import ModelServing
from legato_gateway.serving.prepared_request import Asked, PreparedRequest

_MESSAGES = msgspec.json.Decoder(Messages)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A checked and tokenized conversation, and the format of the answer to it."""

    request: GenerationRequest
    format: AnswerFormat
    start: ChatStart


def prepare(serving: ModelServing, asked: Asked, raw: bytearray) -> PreparedRequest:
    """Checks and tokenizes. Raises the client's errors.

    Slow for long prompts: it runs in another thread or process, so its arguments are picklable.
    """
    body = parsing.parse(ChatBody, raw)
    served = serving.check_model(body.model)
    unsupported.check_chat(body)
    messages = parsing.decode(_MESSAGES, body.messages, "messages")
    head = ResponseHead(new_id("chatcmpl"), int(time.time()), served)
    chat = chat_request(serving, asked, head.id, body, messages)
    usage = bool(body.stream_options and body.stream_options.include_usage)
    shown = RequestedParts(usage, chat.request.params.logprobs is not None, body.prompt_logprobs)
    added = extras.asked(body, (chat.request.prompt,), prompt_in_choice=False)
    return PreparedRequest(
        requests=(chat.request,),
        writer=ChatWriter(head, shown, serving.tokens.token_bytes, chat.format, added, chat.start),
        stream=bool(body.stream),
        explain=chat.request.explain,
        id=head.id,
        model=served.name,
    )


def chat_request(
    serving: ModelServing, asked: Asked, id: str, body: ChatBody, messages: Sequence[ChatMessage]
) -> ChatRequest:
    """Checks and tokenizes a chat, for other APIs too. Raises the client's errors, with this API's paths.

    `body.messages` is not read, and its model was checked.
    """
    options = params.options(asked, body)
    logprobs = _logprobs(body)
    serving = serving.salted(options.cache_salt)
    body = reasoning_bounds.switched_off(body, serving.reasoning, serving.tokens.template_takes)
    reasoning_bounds.check_budget(body.thinking_token_budget, serving.reasoning)
    tools, prompt = rendered(serving, body, messages)
    wanted = body.max_completion_tokens or body.max_tokens
    most = params.limit(wanted, len(prompt), serving.model, serving.model.defaults.max_tokens, "messages")
    reasoning = _reasoning(serving, body, prompt, tools)
    grammar = reasoning_bounds.bounded(reasoning, body.thinking_token_budget, tools.grammar)
    sampling = params.sampling(body, serving, most, logprobs, grammar)
    prompt_logprobs.check_size(body, sampling.prompt_logprobs, len(prompt))
    shown = _shown(serving, tools, reasoning) | serving.shown_tokens(body.skip_special_tokens)
    counted = reasoning.tokens if reasoning else None
    request = params.request(serving, id, prompt, sampling, body, options, shown, counted)
    return ChatRequest(request, AnswerFormat(tools.calls, reasoning), answer_start.parse(body, messages))


def rendered(
    serving: ModelServing, body: ChatBody, messages: Sequence[ChatMessage]
) -> tuple[OfferedTools, tuple[int, ...]]:
    """Returns the tools that `body` offers, and the prompt's tokens."""
    body = reasoning_bounds.switched_off(body, serving.reasoning, serving.tokens.template_takes)
    for number, message in enumerate(messages):
        unsupported.check_message(message, f"messages[{number}]")
    family, answer = serving.tools.family, structured_output.parse(body)
    tools = tool_definitions.offered(body, family, serving.tools.why_not, answer, _marks(serving, messages))
    start = answer_start.parse(body, messages)
    if serving.reasoning.harmony is not None and tools.grammar is not None and tools.calls is None:
        tools = dataclasses.replace(tools, grammar=harmony_grammar.final(tools.grammar, start.continued))
    wanted = body.max_completion_tokens or body.max_tokens or 1
    keep = params.kept_tokens(body, serving.model.context, wanted)
    return tools, _prompt(serving, body, messages, tools, start, keep)


def _marks(serving: ModelServing, messages: Sequence[ChatMessage]) -> CallMarks:
    """Returns the marks of the model's calls that are special tokens, and the number of earlier calls."""
    family, tokens = serving.tools.family, serving.tokens
    ids = tokens.special_ids(FAMILIES[family].markers) if family is not None else ()
    return CallMarks({tokens.token_text(id): id for id in ids}, chat_messages.calls(messages))


def _prompt(
    serving: ModelServing,
    body: ChatBody,
    messages: Sequence[ChatMessage],
    tools: OfferedTools,
    start: ChatStart,
    keep: int | None,
) -> tuple[int, ...]:
    asked = template_variables.parse(body, serving.tokens.template_takes, serving.reasoning)
    plain = serving.plain_text()
    try:
        templated, variables = serving.template_input(
            plain.messages(chat_messages.templated(messages, serving.tools.family)), plain.values(tools.shown)
        )
        variables = plain.variables(asked) | variables | ({} if start.prompted else {"add_generation_prompt": False})
    except RecursionError:
        raise BadRequest("tools or arguments of calls are nested too deeply") from None
    with serving.tokenizing("messages"):
        ids = serving.tokens.encode_chat(
            templated,
            serving.model.context,
            variables,
            add_special=bool(body.add_special_tokens),
            keep=keep,
            continued=start.continued,
            cut=plain.cut,
            salt=serving.cache_salt,
        )
    prompt = tuple(ids)
    serving.check_prompt(prompt, "messages")
    return prompt


def _reasoning(
    serving: ModelServing, body: ChatBody, prompt: tuple[int, ...], tools: OfferedTools
) -> ReasoningFormat | None:
    format = serving.reasoning.format_for(prompt, serving.tokens, body.include_reasoning is not False)
    if format is not None and format.tokens is None and tools.grammar is not None:
        return None  # the grammar starts with the answer, and no worker can detect the end of reasoning
    return format


def _shown(serving: ModelServing, tools: OfferedTools, reasoning: ReasoningFormat | None) -> frozenset[int]:
    """Returns the special tokens that mark calls and reasoning."""
    marks = reasoning_parser.FAMILIES.get(reasoning.family) if reasoning else None
    texts = [
        *(FAMILIES[tools.calls.family].markers if tools.calls else ()),
        *((marks.open, marks.close) if marks else ()),
    ]
    return serving.tokens.special_ids(texts) if texts else frozenset()


def _logprobs(body: ChatBody) -> int | None:
    if body.top_logprobs is not None and not body.logprobs:
        raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None
