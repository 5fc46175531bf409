"""Output of pods, with the pod's name before each line."""

import asyncio
import itertools
from collections.abc import Callable

LONGEST_LINE = 16 << 10
_COLOURS = (36, 33, 35, 32, 34, 31)  # of a terminal: cyan, yellow, magenta, green, blue, red


class Logs:
    """Merges the output of pods. `write` gets whole lines, coloured for a terminal with `colour`, except lines that
    start with one of `hidden`. `keep` gets every line undecorated, with the name of the pod."""

    def __init__(
        self,
        write: Callable[[str], None],
        colour: bool = False,
        hidden: tuple[str, ...] = (),
        keep: Callable[[str, str], None] = lambda pod, text: None,
    ) -> None:
        self._keep = keep
        self._write = write
        self._colour = colour
        self._hidden = hidden
        self._colours: dict[str, int] = {}
        self._cycle = itertools.cycle(_COLOURS)
        self._width = 0

    def line(self, pod: str, text: str) -> None:
        """Writes one line of a pod."""
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
        """Writes a process's output until it ends. Returns its last line that is not empty."""
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
