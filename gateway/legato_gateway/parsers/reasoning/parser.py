"""The marks around models' reasoning, and a parser that finds the reasoning of one answer in pieces of text."""

from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from legato_gateway.parsers.harmony import tokens as harmony

AUTO: Final = "Auto"
OFF: Final = "Off"


@dataclass(frozen=True, slots=True)
class Marks:
    """Reasoning is between `open` and `close`."""

    open: str
    close: str


FAMILIES: Final = MappingProxyType(
    {
        "Think": Marks("<think>", "</think>"),  # DeepSeek R1 and its distillations, QwQ, Qwen 3 and most others
        "Mistral": Marks("[THINK]", "[/THINK]"),  # Magistral and Ministral
    }
)
SETTINGS: Final = (AUTO, *FAMILIES, harmony.FAMILY, OFF)


def from_template(template: str | None) -> str | None:
    """Returns the family whose marks a chat template contains, or None."""
    if template is not None and harmony.in_template(template):
        return harmony.FAMILY
    for family, marks in FAMILIES.items():
        if template is not None and (marks.open in template or marks.close in template):
            return family
    return None


class _State(Enum):
    BEFORE = "before"  # an opening mark may still come
    INSIDE = "inside"
    BEHIND = "behind"


class ReasoningParser:
    """Splits the text of an answer into reasoning and content. Space next to a mark is dropped. Reasoning starts in the
    prompt, or with the answer.

    `open_in_prompt`: the prompt ends within reasoning; such an answer may repeat the opening mark.
    """

    def __init__(self, marks: Marks, open_in_prompt: bool) -> None:
        self._marks = marks
        self._open_in_prompt = open_in_prompt
        self._state = _State.BEFORE
        self._held = ""  # a possible part of a mark, or space next to one
        self._after_mark = False  # any space that comes next follows a mark
        self._read = 0  # characters
        self.content_at: int | None = None  # where in the text content starts, once there is any

    @property
    def passed(self) -> int:
        """A place in the text that all later content comes after."""
        return self._read - len(self._held)

    def push(self, text: str) -> tuple[str, str]:
        """Returns the new reasoning and the new content."""
        self._read += len(text)
        self._held += text
        if self._state is _State.BEFORE:
            self._open()
        reasoning = self._inside() if self._state is _State.INSIDE else ""
        return reasoning, self._behind() if self._state is _State.BEHIND else ""

    def finish(self) -> tuple[str, str]:
        """Returns the withheld reasoning and content, at the end of the text."""
        if self._state is _State.BEFORE:
            self._state, self._after_mark = (_State.INSIDE, True) if self._open_in_prompt else (_State.BEHIND, False)
        if self._state is _State.BEHIND:
            return "", self._behind()
        self._skip_space()
        held, self._held = self._held, ""
        return held.rstrip(), ""

    def _open(self) -> None:
        said, mark = self._held.lstrip(), self._marks.open
        if len(said) < len(mark) and mark.startswith(said):
            return
        if said.startswith(mark):
            self._held = said[len(mark) :]
        elif not self._open_in_prompt:
            self._state = _State.BEHIND
            return
        self._state, self._after_mark = _State.INSIDE, True

    def _inside(self) -> str:
        self._skip_space()
        said, mark, rest = self._held.partition(self._marks.close)
        if mark:
            self._held, self._state, self._after_mark = rest, _State.BEHIND, True
            return said.rstrip()
        shown = said[: len(said) - self._begins_close(said)].rstrip()
        self._held = said[len(shown) :]
        return shown

    def _begins_close(self, said: str) -> int:
        """Returns the length of the longest end of `said` that may start the closing mark."""
        mark = self._marks.close
        return next((size for size in range(len(mark) - 1, 0, -1) if said.endswith(mark[:size])), 0)

    def _behind(self) -> str:
        self._skip_space()
        content, self._held = self._held, ""
        if content and self.content_at is None:
            self.content_at = self._read - len(content)
        return content

    def _skip_space(self) -> None:
        if self._after_mark:
            self._held = self._held.lstrip()
            self._after_mark = not self._held
