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
    """Reasoning is between `open` and `close`. The rest may be between the marks of an `answer`."""

    open: str
    close: str
    answer: tuple[str, str] | None = None


FAMILIES: Final = MappingProxyType(
    {
        "Think": Marks("<think>", "</think>"),  # DeepSeek R1 and its distillations, QwQ, Qwen 3 and most others
        "Mistral": Marks("[THINK]", "[/THINK]"),  # Magistral and Ministral
        "Granite": Marks("<think>", "</think>", ("<response>", "</response>")),  # Granite 3.3
    }
)
SETTINGS: Final = (AUTO, *FAMILIES, harmony.FAMILY, OFF)


def from_template(template: str | None) -> str | None:
    """Returns the family whose marks a chat template contains, or None."""
    if template is not None and harmony.in_template(template):
        return harmony.FAMILY
    if template is not None and all(mark in template for mark in ("</think>", "</response>")):
        return "Granite"
    for family, marks in FAMILIES.items():
        if template is not None and (marks.open in template or marks.close in template):
            return family
    return None


class _State(Enum):
    BEFORE = "before"  # an opening mark may still come
    INSIDE = "inside"
    ANSWER = "answer"  # the mark of an answer may still come
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
        self._end = ""  # the mark that ends the content
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
        if self._state is _State.ANSWER:
            self._answer()
        return reasoning, self._behind() if self._state is _State.BEHIND else ""

    def finish(self) -> tuple[str, str]:
        """Returns the withheld reasoning and content, at the end of the text."""
        if self._state is _State.BEFORE:
            self._state, self._after_mark = (_State.INSIDE, True) if self._open_in_prompt else (_State.BEHIND, False)
        if self._state is _State.ANSWER:
            self._state = _State.BEHIND
        if self._state is _State.BEHIND:
            return "", self._behind(last=True)
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
            self._held, self._after_mark = rest, True
            self._state = _State.BEHIND if self._marks.answer is None else _State.ANSWER
            return said.rstrip()
        shown = said[: len(said) - self._begins(self._marks.close, said)].rstrip()
        self._held = said[len(shown) :]
        return shown

    @staticmethod
    def _begins(mark: str, said: str) -> int:
        """Returns the length of the longest end of `said` that may start a mark, less than a whole one."""
        return next((size for size in range(len(mark) - 1, 0, -1) if said.endswith(mark[:size])), 0)

    def _answer(self) -> None:
        """Drops the mark that opens an answer."""
        assert self._marks.answer is not None
        said, mark = self._held.lstrip(), self._marks.answer[0]
        if mark.startswith(said) and said != mark:
            return
        self._state, self._end = _State.BEHIND, self._marks.answer[1] if said.startswith(mark) else ""
        self._held, self._after_mark = said.removeprefix(mark), True

    def _behind(self, last: bool = False) -> str:
        """Returns the content so far, without the mark that ends it."""
        self._skip_space()
        begin = self._read - len(self._held)
        at = self._end_at(self._held) if self._end else len(self._held)
        content, self._held = self._held[:at], self._held[at:]
        if last:
            content += "" if self._end and self._held.strip() == self._end else self._held
            self._held = ""
        if content and self.content_at is None:
            self.content_at = begin
        return content

    def _end_at(self, content: str) -> int:
        """Returns the place where the mark that ends `content`, and space around it, may start."""
        said, mark = content.rstrip(), self._end
        size = len(mark) if said.endswith(mark) else self._begins(mark, content)
        return len(content[: len(said if size == len(mark) else content) - size].rstrip())

    def _skip_space(self) -> None:
        if self._after_mark:
            self._held = self._held.lstrip()
            self._after_mark = not self._held
