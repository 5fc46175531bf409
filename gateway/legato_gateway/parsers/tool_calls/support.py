"""The served model's support for tools: the format of its calls, and the input of its template."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from legato_gateway.parsers.tool_calls import families, preamble


@dataclass(frozen=True, slots=True)
class ToolSupport:
    """`family` is None if calls cannot be read, for the reason `why_not`.

    `in_template`: the model's chat template takes tools; else they are described in the system message.
    """

    family: str | None = None
    in_template: bool = False
    why_not: str = "tools are switched off (gateway.toolCallParser)"
    in_system: bool = True  # the template has system messages

    def template_input(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Returns messages and variables for the chat template."""
        if self.in_template:
            return list(messages), {"tools": list(tools)} if tools else {}
        return preamble.with_tools(messages, tools, self.in_system), {}


def for_model(setting: str, template: str | None, takes_tools: bool) -> ToolSupport:
    """Returns the support of a model with this chat template. `setting` is the chosen parser."""
    if setting == families.OFF:
        return ToolSupport(None, takes_tools)
    if setting != families.AUTO:
        return ToolSupport(setting, takes_tools)
    if not takes_tools:
        return ToolSupport("Hermes", False)
    family = families.from_template(template)
    known = ", ".join(families.FAMILIES)
    why = f"the format of the calls of this model is not known; gateway.toolCallParser may name it ({known})"
    return ToolSupport(family, True, why)
