"""What the served model can do with reasoning: the marks of it, and where it begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from legato_gateway.parsers.reasoning import families
from legato_gateway.parsers.reasoning.families import FAMILIES
from legato_protocol.reasoning import ReasoningTokens

_TAIL = 32  # tokens at the end of a prompt in which a mark is looked for
_SPACE = ("\n", "\n\n", " ")  # what models write before their opening mark, if anything


class Tokens(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, add_special: bool, most: int) -> list[int]: ...

    def token_bytes(self, id: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How one request's reasoning is read. `open_in_prompt` says that the prompt ends within it, `shown` that the client is to
    see it. `tokens` is None where the marks are no tokens of their own."""

    family: str
    open_in_prompt: bool
    shown: bool = True
    tokens: ReasoningTokens | None = None


@dataclass(frozen=True, slots=True)
class ReasoningSupport:
    """`family` is None for a model that does not reason, or whose reasoning is not looked for. `open` and `close` are
    its marks as tokens, if each is one; `space` may stand before them."""

    family: str | None = None
    open: int | None = None
    close: int | None = None
    space: tuple[int, ...] = ()

    @property
    def counts(self) -> bool:
        """Its tokens can be counted, and bounded."""
        return self.open is not None and self.close is not None

    def of_prompt(self, prompt: Sequence[int], tokens: Tokens, shown: bool) -> ReasoningFormat | None:
        """How the answer to this prompt is read; None where it has no reasoning, which some templates say by its
        closing mark."""
        if self.family is None:
            return None
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


def of_model(setting: str, template: str | None, tokens: Tokens) -> ReasoningSupport:
    """What a model with this chat template can do, where `setting` is the parser that was chosen."""
    family = families.of_template(template) if setting == families.AUTO else setting
    if family is None or family == families.OFF:
        return ReasoningSupport()
    marks = FAMILIES[family]
    space = tuple(id for text in _SPACE if (id := _token(text, tokens)) is not None)
    return ReasoningSupport(family, _token(marks.open, tokens), _token(marks.close, tokens), space)


def _token(text: str, tokens: Tokens) -> int | None:
    """The token that `text` is alone."""
    ids = tokens.encode(text, False, len(text))
    return ids[0] if len(ids) == 1 and tokens.token_bytes(ids[0]) == text.encode() else None
