"""A model's chat template: messages to prompt text.

Templates come with the model and are written for transformers, so they get its environment
(https://huggingface.co/docs/transformers/chat_templating_writing), in jinja2's sandbox.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SYSTEM: Final = "system"
USER: Final = "user"


class TemplateFault(ValueError):
    """The template is broken, or refuses these messages. The text is its own message."""


class UnreadArguments(dict[str, str]):
    """Arguments of an earlier call that are not a JSON object: `arguments | tojson` shows them as the model wrote them.

    Templates that read single arguments, or show the whole function, see one named INVALID_JSON (Anthropic's word).
    """

    def __init__(self, written: str) -> None:
        super().__init__(INVALID_JSON=written)


class WrittenArguments(str):
    """Arguments of an earlier call as JSON, for templates that append them to text; `tojson` keeps them."""

    __slots__ = ()


class ChatTemplate:
    """A compiled template. Safe to use from several threads."""

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        """`variables` are visible to the template in every call: `bos_token`, `eos_token`. Raises TemplateFault."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now, **variables)
        try:
            self._template = environment.from_string(source)
            self.variables = frozenset(meta.find_undeclared_variables(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise TemplateFault(f"the model's chat template is broken: {error}") from None

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Renders the prompt. `variables` are for the template in addition to the messages, and may have any name.

        If it refuses the order of roles, messages are merged as strict templates require. Raises TemplateFault if the
        template cannot take these messages.
        """
        given = {"add_generation_prompt": True, "tools": None, "documents": None, **variables}
        try:
            return self._rendered({**given, "messages": messages})
        except TemplateFault as fault:
            if (ordered := alternating(messages)) == list(messages):
                raise
            with suppress(TemplateFault):
                return self._rendered({**given, "messages": ordered})
            raise fault from None

    def _rendered(self, given: Mapping[str, Any]) -> str:
        try:
            return self._template.render(given)
        except RecursionError:
            raise TemplateFault("the input of the model's chat template is nested too deeply") from None
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise TemplateFault(f"the model's chat template cannot take these messages: {error}") from None

    def render_continued(
        self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any] = MappingProxyType({})
    ) -> str:
        """Renders the prompt up to the end of the last message's content, so that the model continues it.

        As in transformers, that end is marked. A template that trims also trims the mark's own space, and then the
        space before it is trimmed too. Raises TemplateFault, also if the template does not show the content unchanged.
        """
        content = messages[-1]["content"]
        mark = f"end-{secrets.token_hex(16)}"
        marked = [*messages[:-1], {**messages[-1], "content": f"{content}{mark} "}]
        before, match, behind = self.render(marked, variables).rpartition(mark)
        if not match or content.strip() not in before:
            raise TemplateFault("the model's chat template changes the last message, so it cannot be continued")
        return before if behind.startswith(" ") else before.rstrip()


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's text for training; it has no effect here."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces jinja2's filter, which escapes HTML characters: models were not trained on that."""
    if isinstance(value, UnreadArguments):
        return value["INVALID_JSON"]
    if isinstance(value, WrittenArguments):
        return value
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def alternating(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Merges consecutive messages of the system and of the user, which agents send.

    Later system messages become the user's.
    """
    turns: list[Mapping[str, Any]] = []
    for message in messages:
        begins = not turns or (len(turns) == 1 and turns[0]["role"] == SYSTEM)
        role = USER if message["role"] == SYSTEM and not begins else message["role"]
        if turns and role in (SYSTEM, USER) and turns[-1]["role"] == role:
            turns[-1] = {**turns[-1], "content": f"{turns[-1]['content']}\n{message['content']}"}
        else:
            turns.append({**message, "role": role})
    return turns
