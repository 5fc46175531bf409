"""Variables that a request sets in the chat template, by `chat_template_kwargs` or `reasoning_effort`."""

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from legato_gateway.errors import BadRequest, Unsupported
from legato_gateway.openai.schemas import ChatBody
from legato_gateway.parsers.reasoning.support import ReasoningSupport
from legato_gateway.serving import ignored
from legato_gateway.serving.bodies import parsing

MAX_BYTES: Final = 1 << 16  # of JSON
EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
NONE: Final = "none"
_GRADED: Final = "reasoning_effort"
_SWITCHES: Final = ("enable_thinking", "thinking")  # Qwen's, Gemma's and GLM's; DeepSeek's and Granite's
_OF_HARMONY: Final = {"minimal": "low", "xhigh": "high", "max": "high"}  # the model knows three
_RESERVED: Final = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
) | frozenset(
    ("bos_token", "eos_token", "raise_exception", "strftime_now")  # given to the template by this server
)
_OBJECT = msgspec.json.Decoder(dict[str, Any] | None)


def can_switch_off(takes: Callable[[str], bool]) -> bool:
    """True if the template has a variable that switches reasoning off."""
    return any(takes(name) for name in (*_SWITCHES, _GRADED))


def parse(body: ChatBody, takes: Callable[[str], bool], support: ReasoningSupport) -> dict[str, Any]:
    """Returns the variables. Raises BadRequest, Unsupported. `takes` is True for variables that the template reads."""
    given = _given(body.chat_template_kwargs)
    effort = body.reasoning_effort
    if effort is None:
        return given
    if effort not in EFFORTS:
        text = f"not a valid reasoning_effort: {effort[:40]!r} ({', '.join(EFFORTS)})"
        raise BadRequest(text, param="reasoning_effort")
    variables: dict[str, Any] = {switch: effort != NONE for switch in _SWITCHES if takes(switch)}
    if takes(_GRADED):
        variables[_GRADED] = _OF_HARMONY.get(effort, effort) if support.harmony is not None else effort
    if not variables and support.family is not None and effort == NONE:
        text = "reasoning_effort 'none' is not supported: this model's chat template has no variable for it"
        raise Unsupported(text, param="reasoning_effort")
    if not variables and effort != NONE:
        ignored.note("reasoning_effort")
    return variables | given


def _given(raw: Raw | msgspec.UnsetType) -> dict[str, Any]:
    param = "chat_template_kwargs"
    if raw is UNSET:
        return {}
    parsing.check_size(raw, MAX_BYTES, param)
    given = parsing.decode(_OBJECT, raw, param) or {}
    for name in given:
        if name in _RESERVED:
            raise BadRequest(f"{param}.{name} is not for a request to set", param=f"{param}.{name}")
    return given
