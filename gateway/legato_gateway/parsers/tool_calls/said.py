"""What a model's answer says as it arrives: text, calls, and pieces of their arguments. No format in here."""

from dataclasses import dataclass


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


Piece = str | CallStart | CallArguments  # text is what the user is to read


class Said:
    """Collects pieces in their order; neighbours of one kind are joined. Space beside calls belongs to nobody."""

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._run: list[str] = []  # of text, or of the arguments of the latest call
        self._run_of: int | None = None  # which call's arguments; None: text
        self._space = ""  # behind the text so far: whether it is shown depends on what follows
        self.calls = 0

    def text(self, text: str) -> None:
        """More text."""
        shown = text.rstrip()
        if not shown:
            self._space += text
            return
        self._turn_to(None)
        self._run.append(self._space + shown)
        self._space = text[len(shown) :]

    def start(self, name: str) -> None:
        """A call begins."""
        self._flush()
        self._space = ""
        self._pieces.append(CallStart(self.calls, name))
        self.calls += 1

    def arguments(self, text: str) -> None:
        """More arguments of the latest call."""
        self._turn_to(self.calls - 1)
        self._run.append(text)

    def end(self) -> None:
        """Nothing follows."""
        if self._space and not self.calls:
            self._turn_to(None)
            self._run.append(self._space)
        self._space = ""

    def take(self) -> list[Piece]:
        """What is new."""
        self._flush()
        taken, self._pieces = self._pieces, []
        return taken

    def _turn_to(self, call: int | None) -> None:
        if call != self._run_of:
            self._flush()
            self._run_of = call

    def _flush(self) -> None:
        if joined := "".join(self._run):
            self._pieces.append(joined if self._run_of is None else CallArguments(self._run_of, joined))
        self._run.clear()
