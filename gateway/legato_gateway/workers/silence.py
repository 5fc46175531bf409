"""Limits of workers' streams, and silence on them. Pure: the owner of the stream passes the time."""

from dataclasses import dataclass
from typing import Literal

from legato_protocol.wire import hang
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import FromWorker

Verdict = Literal["silent", "hung", "given up"]


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Times in seconds, sizes in frames. `hang` is the longest silence of a healthy worker; see also
    `legato_protocol.wire.hang`."""

    hang: float = 15.0
    open_timeout: float = 5.0
    hello_timeout: float = 60.0  # a worker that still loads its model says Hello when it is ready
    backoff_first: float = 0.05
    backoff_most: float = 2.0
    outbox: int = 10_000

    @property
    def silence(self) -> float:
        """The silence after which a worker gets nothing new, and its sequences wait for it."""
        return self.hang / 3

    @property
    def slice(self) -> float:
        """The unit of counted silence. A gateway that was stopped or starved counts only one slice for this time,
        so that it reads its workers' frames before it judges them."""
        return self.hang / 15


class Silence:
    """Silence on one connection. Each verdict is reported once, until the worker's core speaks again."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits = limits
        self._worker = 0.0  # seconds since anything came
        self._core = 0.0  # seconds since its core said anything
        self._expected = 0.0  # expected seconds of its current step
        self._reported: list[Verdict] = []

    def heard(self, frame: FromWorker | None) -> bool:
        """Resets the silence. Returns True if a core speaks again that was reported as silent.

        A repeated Load from the server is no sign of its core. None: a frame of a kind that only later versions know.
        """
        self._worker = 0.0
        if isinstance(frame, Load):
            self._expected = frame.step_expected
            if frame.core_silence:
                return False
        self._core = 0.0
        spoke, self._reported = bool(self._reported), []
        return spoke

    def passed(self) -> list[Verdict]:
        """Counts another slice and returns the new verdicts."""
        limits = self._limits
        self._worker += limits.slice
        self._core += limits.slice
        patience = hang.limit(limits.hang, self._expected)
        verdicts: tuple[tuple[Verdict, bool], ...] = (
            ("silent", self._core >= limits.silence),
            ("hung", self._worker >= patience),
            ("given up", self._worker >= patience + limits.silence),
        )
        fresh = [verdict for verdict, holds in verdicts if holds and verdict not in self._reported]
        self._reported += fresh
        return fresh
