"""Bounds of an answer with reasoning: `thinking_token_budget`, and a grammar that starts after the reasoning."""

from collections.abc import Callable
from typing import Final

import msgspec

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.chat import template_variables
from legato_gateway.openai.schemas import ChatBody
from legato_gateway.openai.structured_output import AnswerGrammar
from legato_gateway.parsers.reasoning.support import ReasoningFormat, ReasoningSupport
from legato_gateway.serving import ignored
from legato_protocol.sampling.limits import MAX_GRAMMAR_BYTES
from legato_protocol.sampling.parameters import REASONING
from legato_protocol.sampling.reasoning import ReasoningBounds

_BUDGET: Final = "thinking_token_budget"
UNLIMITED: Final = -1  # vLLM's


def switched_off(body: ChatBody, support: ReasoningSupport, takes: Callable[[str], bool]) -> ChatBody:
    """Turns "no reasoning" into a budget of 0, if the template has no switch and workers enforce budgets.

    The efforts of harmony begin with `low`.
    """
    if body.reasoning_effort == template_variables.NONE and support.harmony is not None:
        return msgspec.structs.replace(body, reasoning_effort="low", thinking_token_budget=0)
    if (
        body.reasoning_effort != template_variables.NONE
        or not support.counts
        or template_variables.can_switch_off(takes)
    ):
        return body
    return msgspec.structs.replace(body, reasoning_effort=None, thinking_token_budget=0)


def check_budget(budget: int | None, support: ReasoningSupport) -> None:
    """Raises Unsupported if the model's reasoning cannot be bounded."""
    if budget is None or budget == UNLIMITED or support.counts:
        return
    if support.family is not None:
        text = f"{_BUDGET} is not supported: the marks of this model's reasoning are several tokens each"
        raise Unsupported(text, param=_BUDGET)
    ignored.note(_BUDGET)  # a model that does not reason stays within it


def bounded(format: ReasoningFormat | None, budget: int | None, answer: AnswerGrammar | None) -> AnswerGrammar | None:
    """Returns the grammar of the whole output, where `answer` is for the part after the reasoning.

    Raises BadRequest.
    """
    budget = None if budget == UNLIMITED else budget
    if format is None or format.tokens is None or (budget is None and answer is None):
        return answer
    if format.tokens.header and budget is None:  # the grammar covers all of the output
        return answer
    if answer is None:
        source = _encoded(ReasoningBounds(format.tokens, budget))
        return AnswerGrammar(REASONING, source, _BUDGET, ends=False)
    source = _encoded(ReasoningBounds(format.tokens, budget, answer.source, answer.kind))
    if (size := len(source.encode())) > MAX_GRAMMAR_BYTES:
        text = f"{answer.param} has {size} bytes after reasoning; at most {MAX_GRAMMAR_BYTES} are allowed"
        raise BadRequest(text, param=answer.param)
    return AnswerGrammar(REASONING, source, answer.param)


def _encoded(bounds: ReasoningBounds) -> str:
    return msgspec.json.encode(bounds).decode()
