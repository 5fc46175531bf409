"""Output of `legato up`: lines, and on a terminal a last line that is rewritten during the start."""

import shutil
from typing import TextIO

_CLEAR = "\r\x1b[K"


class Terminal:
    """Lines for the user go to `out`, lines of processes to `err`."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._rewrites = out.isatty()
        self._shown = ""

    def say(self, text: str) -> None:
        """Prints permanent lines."""
        self._clear()
        print(text, file=self._out, flush=True)

    def log(self, line: str) -> None:
        """Writes a process's log line, which includes its newline."""
        self._clear()
        self._err.write(line)
        self._err.flush()

    def update(self, text: str) -> None:
        """Rewrites the last line. Writes nothing without a terminal."""
        text = text[: shutil.get_terminal_size().columns - 1]
        if self._rewrites and text != self._shown:
            self._out.write(_CLEAR + text)
            self._out.flush()
            self._shown = text

    def _clear(self) -> None:
        if self._shown:
            self._out.write(_CLEAR)
            self._out.flush()
            self._shown = ""
