"""Named ranges of time in profiles: steps, and their parts. They cost a call while nobody records them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

Open = Callable[[str], AbstractContextManager[Any]]  # opens a range of this name

STEP: Final = "step"
PREFILL: Final = "prefill chunk"
DECODE: Final = "decode"
MIXED: Final = "prefill chunk, decode"
SAMPLING: Final = "sampling"
HANDOFF: Final = "hand-off"
_OFF: Final = nullcontext()


class StepRow(Protocol):
    """A row of a step."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def drafts(self) -> int: ...


class Ranges:
    """Opens ranges where they are recorded: always by `persistent`, and by a profiler while it runs."""

    def __init__(self, persistent: Open | None = None) -> None:
        self._persistent = persistent
        self._open = persistent

    def record(self, by: Open | None) -> None:
        """Ranges are opened by `by` from now on; None: as before."""
        self._open = by or self._persistent

    def part(self, name: str) -> AbstractContextManager[Any]:
        """Opens a range."""
        return _OFF if self._open is None else self._open(name)

    def forward(self, rows: Sequence[StepRow]) -> AbstractContextManager[Any]:
        """Opens the range of a step's layers, named by the kinds of its rows."""
        if self._open is None:
            return _OFF
        prompts = sum(len(row.tokens) > 1 + row.drafts for row in rows)
        return self._open(DECODE if not prompts else PREFILL if prompts == len(rows) else MIXED)
