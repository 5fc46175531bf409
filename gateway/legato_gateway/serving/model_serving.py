"""The served model: its names and limits, its tokens, and the formats of its output."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from legato_gateway.errors import BadRequest, ContextLengthExceeded, NotFound
from legato_gateway.generation_config import NEUTRAL, GenerationDefaults
from legato_gateway.parsers.harmony import history
from legato_gateway.parsers.harmony import support as harmony
from legato_gateway.parsers.harmony.tokens import FAMILY
from legato_gateway.parsers.reasoning import support as reasoning_support
from legato_gateway.parsers.reasoning.parser import FAMILIES
from legato_gateway.parsers.reasoning.support import ReasoningSupport
from legato_gateway.parsers.tool_calls import families
from legato_gateway.parsers.tool_calls.families import ToolSupport
from legato_gateway.tokenizer.plain_text import PlainText
from legato_gateway.tokenizer.tokens import ModelTokenizer, TextTooLong, TokenizeError


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, as clients name it.

    `context` is the longest sequence of prompt and answer. `max_output` is the longest answer, if that is bounded too.
    `defaults` apply to sampling parameters that a request leaves out.
    """

    name: str
    context: int
    max_output: int | None = None
    parent: str = ""  # for an adapter: the model that it adapts
    created: int = field(default_factory=lambda: int(time.time()))
    fingerprint: str = "legato"
    defaults: GenerationDefaults = NEUTRAL


@dataclass(frozen=True, slots=True)
class ModelServing:
    """The served model with its tokens: all that is needed to check a request. Picklable except for `tokens`."""

    tokens: ModelTokenizer
    model: ServedModel
    tools: ToolSupport = field(default_factory=ToolSupport)
    reasoning: ReasoningSupport = field(default_factory=ReasoningSupport)
    adapters: tuple[str, ...] = ()  # names of the adapters served with the model
    cache_salt: str = ""  # the request's: requests with equal ones share cached token ids

    @classmethod
    def of_model(
        cls,
        tokens: ModelTokenizer,
        model: ServedModel,
        tool_call_parser: str = families.AUTO,
        reasoning_parser: str = families.AUTO,
    ) -> "ModelServing":
        """Returns the model served with these parsers; `AUTO` chooses them by the chat templates."""
        tools = families.for_model(tool_call_parser, tokens.tool_template, tokens.template_takes("tools"))
        tools = replace(tools, in_system=_has_system(tokens))
        reasoning = reasoning_support.for_model(reasoning_parser, tokens.chat_template, tokens, model.name)
        chosen = harmony.HarmonyChoice(tool_call_parser, reasoning_parser, tokens.chat_template, model.name)
        if chosen.reason:
            tools, reasoning = _harmony(tokens, chosen, tools)
        elif tools.family == FAMILY:
            tools = replace(tools, family=None, why_not="gateway.reasoningParser names another format")
        return cls(tokens, model, tools, reasoning)

    @property
    def models(self) -> tuple[ServedModel, ...]:
        """All models that clients can name, the base model first."""
        adapted = [replace(self.model, name=name, parent=self.model.name) for name in self.adapters]
        return (self.model, *adapted)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        if (special := self.reasoning.harmony) is not None:
            return special.ends(self.tokens.eos_ids)
        stops = families.FAMILIES[self.tools.family].stops if self.tools.family is not None else ()
        more = self.tokens.special_ids(stops) if stops else ()
        return tuple(dict.fromkeys((*self.tokens.eos_ids, *more)))

    def template_input(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Returns messages and variables for the chat template."""
        if self.reasoning.harmony is not None:
            return history.template_input(messages, tools)
        return self.tools.template_input(messages, tools)

    def plain_text(self) -> PlainText:
        """Returns the rules for clients' text in one request: the system and the assistant may write reasoning."""
        marks = FAMILIES.get(self.reasoning.family or "")
        return PlainText(self.tokens.special_texts, (marks.open, marks.close) if marks else ())

    def formats(self) -> dict[str, dict[str, str | None]]:
        """Returns the formats of calls and of reasoning, each with the reason for it."""
        tools, reasoning = self.tools, self.reasoning
        return {
            "tool_calls": {"format": tools.family, "reason": tools.why if tools.family else tools.why_not},
            "reasoning": {"format": reasoning.family, "reason": reasoning.why},
        }

    def bounded(self, max_output: int | None) -> "ModelServing":
        """Returns a copy that bounds answers to `max_output` tokens; None: the service's bound."""
        if max_output is None:
            return self
        most = min(max_output, self.model.max_output or max_output)
        return replace(self, model=replace(self.model, max_output=most))

    def salted(self, cache_salt: str) -> "ModelServing":
        """Returns a copy for a request with this salt."""
        return replace(self, cache_salt=cache_salt)

    def adapter(self, name: str | None) -> str:
        """Returns the name if it is an adapter's, else an empty one."""
        return name if name is not None and name in self.adapters else ""

    def check_model(self, name: str | None) -> ServedModel:
        """Returns the model or adapter of that name; None means the model. Raises NotFound."""
        for served in self.models:
            if name in (None, served.name):
                return served
        served_here = ", ".join(repr(served.name) for served in self.models)
        text = f"the model {str(name)[:200]!r} does not exist; {served_here} {'do' if self.adapters else 'does'}"
        raise NotFound(text, param="model", code="model_not_found")

    @contextmanager
    def tokenizing(self, param: str) -> Iterator[None]:
        """Raises errors of a text as errors of the field it came from."""
        try:
            yield
        except TextTooLong as error:
            raise too_long(self.model.context, f"a prompt of {error.size} bytes is more", param) from None
        except TokenizeError as error:
            raise BadRequest(str(error), param=param) from None

    def shown_tokens(self, skip_special: bool | None) -> frozenset[int]:
        """Returns the special tokens that an answer's text shows: none unless a request sets False."""
        return self.tokens.all_special_ids if skip_special is False else frozenset()

    def check_prompt(self, prompt: Sequence[int], param: str) -> None:
        """Raises BadRequest for ids outside the vocabulary, and for an empty prompt."""
        if not prompt:
            raise BadRequest(f"{param} has no tokens", param=param)
        if max(prompt) >= self.tokens.vocab_size:
            text = f"not a valid token id in {param}: {max(prompt)} (0 to {self.tokens.vocab_size - 1})"
            raise BadRequest(text, param=param)


def _harmony(
    tokens: ModelTokenizer, chosen: harmony.HarmonyChoice, tools: ToolSupport
) -> tuple[ToolSupport, ReasoningSupport]:
    """Returns the support of a model in whose answers calls and reasoning are parts of one format."""
    if (special := harmony.for_model(tokens)) is None:
        text = "the tokenizer lacks special tokens of Harmony"
        return replace(tools, family=None, why_not=text), ReasoningSupport(why=text)
    hidden = chosen.reasoning == families.OFF
    reasoning = ReasoningSupport(FAMILY, hidden=hidden, harmony=special, why=chosen.reason)
    if chosen.tool_calls == families.OFF:
        return tools, reasoning
    if not tokens.template_takes("tools"):
        return replace(tools, family=None, why_not="its chat template takes none"), reasoning
    return ToolSupport(FAMILY, in_template=True, why=chosen.reason), reasoning


def _has_system(tokens: ModelTokenizer) -> bool:
    """True unless the chat template refuses system messages."""
    messages = [{"role": role, "content": "a"} for role in ("system", "user")]
    try:
        tokens.encode_chat(messages, 1 << 20, {})
    except TokenizeError:
        return False
    return True


def too_long(context: int, what: str, param: str) -> ContextLengthExceeded:
    """Returns the error whose first words, OpenAI's, give clients that cut prompts the maximum length."""
    return ContextLengthExceeded(f"This model's maximum context length is {context} tokens, but {what}", param=param)
