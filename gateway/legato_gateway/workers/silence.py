"""How long a connected worker has said nothing, and what follows. Pure: whoever keeps its stream passes the time."""

from dataclasses import dataclass
from typing import Literal

from legato_protocol import hang
from legato_protocol.load import Load
from legato_protocol.stream import FromWorker

Verdict = Literal["silent", "hung", "given up"]


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """Times in seconds. `hang` is how long a worker may give no sign of life; see also `legato_protocol.hang`."""

    hang: float = 15.0

    @property
    def silence(self) -> float:
        """After which a worker is given nothing new, and what it has is waited for."""
        return self.hang / 3

    @property
    def slice(self) -> float:
        """In which silence is counted. A gateway that was stopped or starved counts one, however long it was, so that
        it hears its workers before it judges them."""
        return self.hang / 15


class Silence:
    """Of one connection. Each verdict is told once, until the worker's core speaks again."""

    def __init__(self, limits: SilenceLimits) -> None:
        self._limits = limits
        self._worker = 0.0  # seconds since anything came
        self._core = 0.0  # seconds since its core said anything
        self._expected = 0.0  # seconds that its step under way should take
        self._told: list[Verdict] = []

    def heard(self, frame: FromWorker | None) -> bool:
        """Whether a core speaks that was told of as silent. What the server repeats for it is no word of the core.
        None: a frame of a kind that only a later version knows."""
        self._worker = 0.0
        if isinstance(frame, Load):
            self._expected = frame.step_expected
            if frame.core_silence:
                return False
        self._core = 0.0
        spoke, self._told = bool(self._told), []
        return spoke

    def passed(self) -> list[Verdict]:
        """Another slice has passed."""
        limits = self._limits
        self._worker += limits.slice
        self._core += limits.slice
        patience = hang.limit(limits.hang, self._expected)
        verdicts: tuple[tuple[Verdict, bool], ...] = (
            ("silent", self._core >= limits.silence),
            ("hung", self._worker >= patience),
            ("given up", self._worker >= patience + limits.silence),
        )
        fresh = [verdict for verdict, holds in verdicts if holds and verdict not in self._told]
        self._told += fresh
        return fresh
