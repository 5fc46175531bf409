"""The parts of a model's answer as it arrives: text, calls, and pieces of their arguments. Independent of formats."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from legato_gateway.parsers.tool_calls.reading import missing

Schemas = Mapping[str, Mapping[str, Any] | None]  # of the arguments of the functions offered, by name
Place = tuple[int, int]  # a range of characters in an answer: the first, and the first after it

BREAK: Final = "\n"  # between separate texts or thoughts
_THOUGHT: Final = -1


@dataclass(frozen=True, slots=True)
class Text:
    """Text for the user, and the places in the answer where it was, in order. A `BREAK` has no place."""

    text: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Thought:
    """Reasoning, in formats that have calls and reasoning in one."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index` of the answer starts. `name` is the function."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More arguments of call number `index`: all pieces joined are JSON, unless the answer was truncated."""

    index: int
    text: str


Piece = Text | Thought | CallStart | CallArguments


class Said:
    """Collects pieces in order, and joins adjacent ones of one kind. Space around calls is dropped.

    The reader of the answer updates `read`, the characters read so far. All later text comes after `passed`.
    """

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._run: list[str] = []  # adjacent text or thoughts, or arguments of the latest call
        self._run_call: int | None = None  # the call whose arguments are in the run, or _THOUGHT; None: text
        self._places: list[Place] = []  # of a run of text
        self._written: list[str] = []  # arguments of the latest call
        self._space: list[tuple[str, int]] = []  # after the text so far; shown only if more text follows
        self._texts = self._thoughts = False  # there are some
        self._break_text = self._break_thought = False  # a BREAK comes before the next
        self.calls = 0
        self.complete = False  # the model has ended the answer
        self.read = 0
        self.passed = 0

    def text(self, text: str, behind: int = 0) -> None:
        """Adds text that ended `behind` characters ago."""
        begin, shown = self.read - behind - len(text), text.rstrip()
        if shown:
            self._emit_space()
            self._emit(shown, begin)
        if len(shown) < len(text):
            self._space.append((text[len(shown) :], begin + len(shown)))

    def thought(self, text: str) -> None:
        """Adds reasoning."""
        self._switch_to(_THOUGHT)
        self._run += (BREAK, text) if self._break_thought else (text,)
        self._thoughts, self._break_thought = True, False
        self.passed = self.read

    def separate(self) -> None:
        """Ends a text or a thought: later ones are separate from those so far."""
        self._space.clear()
        self._break_text, self._break_thought = self._texts, self._thoughts

    def start(self, name: str) -> None:
        """Starts a call."""
        self._flush()
        self._space.clear()
        self._written.clear()
        self._pieces.append(CallStart(self.calls, name))
        self.calls += 1
        self.passed = self.read

    def arguments(self, text: str, behind: int = 0) -> None:
        """Adds arguments to the latest call, which ended `behind` characters ago."""
        self._switch_to(self.calls - 1)
        self._run.append(text)
        self._written.append(text)
        self.passed = self.read - behind

    def complete_arguments(self, behind: int = 0) -> None:
        """Adds the quote and brackets that the latest call's arguments lack, if those make them JSON."""
        self.arguments(missing("".join(self._written)), behind)

    def end(self) -> None:
        """Ends the answer."""
        if self.calls and self.complete:
            self.complete_arguments()
        if not self.calls:
            self._emit_space()
        self._space.clear()

    def take(self) -> list[Piece]:
        """Removes and returns the new pieces."""
        self._flush()
        taken, self._pieces = self._pieces, []
        return taken

    def _emit(self, text: str, begin: int) -> None:
        if self._break_text:
            self._flush()
            self._pieces.append(Text(BREAK, ()))
        self._switch_to(None)
        self._texts, self._break_text = True, False
        self._run.append(text)
        end = begin + len(text)
        if self._places and self._places[-1][1] == begin:
            begin, _ = self._places.pop()
        self._places.append((begin, end))

    def _emit_space(self) -> None:
        for text, begin in self._space:
            self._emit(text, begin)
        self._space.clear()

    def _switch_to(self, call: int | None) -> None:
        if call != self._run_call:
            self._flush()
            self._run_call = call

    def _flush(self) -> None:
        if joined := "".join(self._run):
            self._pieces.append(self._piece(joined))
        self._run.clear()
        self._places.clear()

    def _piece(self, joined: str) -> Piece:
        if self._run_call is None:
            return Text(joined, tuple(self._places))
        return Thought(joined) if self._run_call == _THOUGHT else CallArguments(self._run_call, joined)
