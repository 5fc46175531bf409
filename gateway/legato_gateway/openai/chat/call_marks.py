"""The marks of a format of calls, written for grammars."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from legato_grammar import lark


@dataclass(frozen=True, slots=True)
class CallMarks:
    """`special` are ids of the marks that are special tokens of the model, by text; other marks are plain text.

    `earlier` calls are in the conversation. Only the model's vocabulary has its special tokens: checked `as_text`,
    grammars do without them.
    """

    special: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    earlier: int = 0
    as_text: bool = False

    def is_token(self, mark: str) -> bool:
        """True if grammars write a mark as a token."""
        return mark in self.special and not self.as_text

    def write(self, text: str) -> str:
        """Formats a text with marks, which a model can only write as tokens if they are special."""
        marks = "|".join(map(re.escape, self.special))
        parts = re.split(f"({marks})", text) if marks else [text]
        return " ".join(
            f"<[{self.special[part]}]>" if self.is_token(part) else lark.literal(part) for part in parts if part
        )


NO_MARKS = CallMarks()
