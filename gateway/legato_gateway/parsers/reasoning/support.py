"""The served model's support for reasoning: its marks, and the place where it starts."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from legato_gateway.parsers.harmony.support import HarmonyTokens
from legato_gateway.parsers.reasoning import parser
from legato_gateway.parsers.reasoning.parser import FAMILIES
from legato_protocol.sampling.reasoning import ReasoningTokens

_NAMED = "gateway.reasoningParser names it"
_THINKS = re.compile(r"phi-4(-mini)?(-flash)?-reasoning", re.IGNORECASE)  # its template need not show marks
_TAIL = 32  # tokens at the end of a prompt that are searched for a mark
_SPACE = ("\n", "\n\n", " ")  # what models write before their opening mark, if anything


class MarkTokenizer(Protocol):
    """The part of a tokenizer that is used here."""

    def encode(self, text: str, add_special: bool, most: int) -> list[int]: ...

    def special_ids(self, texts: Collection[str]) -> frozenset[int]: ...

    def token_bytes(self, id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """The reasoning in one request's answers. `shown`: the client gets to see it.

    `open_in_prompt`: the prompt ends within reasoning. `tokens` is None if the marks are not single tokens. `header` is
    the header of the message that the prompt ends within, in harmony.
    """

    family: str
    open_in_prompt: bool
    shown: bool = True
    tokens: ReasoningTokens | None = None
    header: str = ""


@dataclass(frozen=True, slots=True)
class ReasoningSupport:
    """`family` is None for a model without reasoning, or if that is not to be read.

    `open` and `close` are its marks as tokens, if each is one; `space` may precede them. Reasoning that is `hidden` is
    read because the rest cannot be read without it. `harmony` is None in other formats.
    """

    family: str | None = None
    open: int | None = None
    close: int | None = None
    space: tuple[int, ...] = ()
    hidden: bool = False
    harmony: HarmonyTokens | None = None
    why: str = "no marks of reasoning in the chat template"

    @property
    def counts(self) -> bool:
        """True if its tokens can be counted and bounded."""
        return self.harmony is not None or (self.open is not None and self.close is not None)

    @property
    def marked(self) -> frozenset[int]:
        """The special tokens that are marked in text for its parser."""
        return self.harmony.marked if self.harmony is not None else frozenset()

    def format_for(self, prompt: Sequence[int], tokens: MarkTokenizer, shown: bool) -> ReasoningFormat | None:
        """Returns the format of the answer to this prompt, or None without reasoning.

        Some templates switch reasoning off by its closing mark.
        """
        if self.family is None:
            return None
        if self.harmony is not None:
            header = self.harmony.header(prompt, tokens)
            counted = self.harmony.reasoning(header)
            return ReasoningFormat(self.family, counted.open_in_prompt, shown and not self.hidden, counted, header)
        tail = b"".join(tokens.token_bytes(id) for id in prompt[-_TAIL:]).rstrip()
        marks = FAMILIES[self.family]
        if tail.endswith(marks.close.encode()):
            return None
        open_in_prompt = tail.endswith(marks.open.encode())
        return ReasoningFormat(self.family, open_in_prompt, shown, self._tokens(open_in_prompt))

    def _tokens(self, open_in_prompt: bool) -> ReasoningTokens | None:
        if self.open is None or self.close is None:
            return None
        return ReasoningTokens(self.open, self.close, open_in_prompt, self.space)


def for_model(setting: str, template: str | None, tokens: MarkTokenizer, name: str = "") -> ReasoningSupport:
    """Returns the support of a model with this chat template and name. `setting` is the chosen parser."""
    family = parser.from_template(template) if setting == parser.AUTO else setting
    why = "the chat template shows it" if setting == parser.AUTO else _NAMED
    if family is None and _THINKS.search(name):
        family, why = "Think", "the model's name"
    if family is None or family not in FAMILIES:
        return ReasoningSupport(why=_NAMED if setting != parser.AUTO else ReasoningSupport().why)
    marks = FAMILIES[family]
    space = tuple(id for text in _SPACE if (id := _token(text, tokens)) is not None)
    opens, closes = _token(marks.open, tokens), _token(marks.close, tokens)
    return ReasoningSupport(family, opens, closes, space, why=why)


def _token(text: str, tokens: MarkTokenizer) -> int | None:
    """Returns the token whose text is exactly `text`, or None."""
    ids = tokens.encode(text, False, len(text))
    return ids[0] if len(ids) == 1 and tokens.token_bytes(ids[0]) == text.encode() else None
