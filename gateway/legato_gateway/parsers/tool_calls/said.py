"""What a model's answer says as it arrives: text, calls, and pieces of their arguments. No format in here."""

from dataclasses import dataclass

Place = tuple[int, int]  # where something is in an answer: its first character, and the first behind it


@dataclass(frozen=True, slots=True)
class Text:
    """What the user is to read, and the places in the answer where it was, in their order."""

    text: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class CallStart:
    """Call number `index` of the answer begins, and this is what it calls."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of call number `index`: all pieces joined are JSON, unless the answer was cut off."""

    index: int
    text: str


Piece = Text | CallStart | CallArguments


class Said:
    """Collects pieces in their order; neighbours of one kind are joined. Space beside calls belongs to nobody.

    `read` characters of the answer were read by now, which who reads has to count. No text that is told from now on
    was before `passed`."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._run: list[str] = []  # of text, or of the arguments of the latest call
        self._run_of: int | None = None  # which call's arguments; None: text
        self._places: list[Place] = []  # of a run of text
        self._space: list[tuple[str, int]] = []  # behind the text so far: whether it is shown depends on what follows
        self.calls = 0
        self.read = 0
        self.passed = 0

    def text(self, text: str, behind: int = 0) -> None:
        """More text; so many characters were read that come behind it."""
        begin, shown = self.read - behind - len(text), text.rstrip()
        if shown:
            self._tell_space()
            self._tell(shown, begin)
        if len(shown) < len(text):
            self._space.append((text[len(shown) :], begin + len(shown)))

    def start(self, name: str) -> None:
        """A call begins."""
        self._flush()
        self._space.clear()
        self._pieces.append(CallStart(self.calls, name))
        self.calls += 1
        self.passed = self.read

    def arguments(self, text: str) -> None:
        """More arguments of the latest call."""
        self._turn_to(self.calls - 1)
        self._run.append(text)
        self.passed = self.read

    def end(self) -> None:
        """Nothing follows."""
        if not self.calls:
            self._tell_space()
        self._space.clear()

    def take(self) -> list[Piece]:
        """What is new."""
        self._flush()
        taken, self._pieces = self._pieces, []
        return taken

    def _tell(self, text: str, begin: int) -> None:
        self._turn_to(None)
        self._run.append(text)
        end = begin + len(text)
        if self._places and self._places[-1][1] == begin:
            begin, _ = self._places.pop()
        self._places.append((begin, end))

    def _tell_space(self) -> None:
        for text, begin in self._space:
            self._tell(text, begin)
        self._space.clear()

    def _turn_to(self, call: int | None) -> None:
        if call != self._run_of:
            self._flush()
            self._run_of = call

    def _flush(self) -> None:
        if joined := "".join(self._run):
            text = Text(joined, tuple(self._places))
            self._pieces.append(text if self._run_of is None else CallArguments(self._run_of, joined))
        self._run.clear()
        self._places.clear()
