"""Output of pods, line by line, each with the name of the pod before it."""

import asyncio
import itertools
from collections.abc import Callable

LONGEST_LINE = 16 << 10
_COLOURS = (36, 33, 35, 32, 34, 31)  # of a terminal: cyan, yellow, magenta, green, blue, red


def _forget(_pod: str, _text: str) -> None:
    return


class Logs:
    """Where pods write to. `write` gets whole lines; `colour` suits a terminal; `hidden` lists line starts to drop.
    `keep` gets every line, with the name of the pod and without any decoration."""

    def __init__(
        self,
        write: Callable[[str], None],
        colour: bool = False,
        hidden: tuple[str, ...] = (),
        keep: Callable[[str, str], None] = _forget,
    ) -> None:
        self._keep = keep
        self._write = write
        self._colour = colour
        self._hidden = hidden
        self._colours: dict[str, int] = {}
        self._cycle = itertools.cycle(_COLOURS)
        self._width = 0

    def line(self, pod: str, text: str) -> None:
        """One line of a pod."""
        self._keep(pod, text)
        if text.startswith(self._hidden):
            return
        self._width = max(self._width, len(pod))
        prefix = f"{pod:<{self._width}} |"
        if self._colour:
            if pod not in self._colours:
                self._colours[pod] = next(self._cycle)
            prefix = f"\x1b[{self._colours[pod]}m{prefix}\x1b[0m"
        self._write(f"{prefix} {text}\n")

    async def follow(self, pod: str, stream: asyncio.StreamReader) -> str:
        """Write a process's output until it ends. Returns its last line that is not empty."""
        last, rest = "", b""
        while chunk := await stream.read(LONGEST_LINE):
            *lines, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], b""
            for line in filter(None, lines):
                last = line.decode(errors="replace")
                self.line(pod, last)
        if rest:
            last = rest.decode(errors="replace")
            self.line(pod, last)
        return last
