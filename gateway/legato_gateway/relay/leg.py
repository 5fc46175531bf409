"""A leg: what one id on the wire stands for. Which attempt runs where, and whose tokens count.

At first one leg carries all choices of a request; after a failure, or once its worker drains, each unfinished choice
has its own.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from legato_gateway.relay.generation import RunningGeneration
    from legato_protocol.stream import Failed, Part

Stage = Literal["waiting", "queued", "prefilling", "decoding"]  # in their order; the first is in the gateway
STAGES: tuple[Stage, ...] = ("waiting", "queued", "prefilling", "decoding")


@dataclass(frozen=True, slots=True)
class Placement:
    """One attempt on its workers. `prefill` is empty where the decode worker prefills; epochs by worker name."""

    attempt: int
    prefill: str
    decode: str
    epochs: dict[str, str]

    @property
    def workers(self) -> set[str]:
        return {self.decode, self.prefill} - {""}


@dataclass(slots=True, eq=False)
class Leg:
    """`attempt` is the highest one given out. Without a placement the leg waits for a worker."""

    id: str
    generation: "RunningGeneration"
    choices: tuple[int, ...]
    attempt: int = 0
    placement: Placement | None = None
    move: Placement | None = None  # where the sequence is being handed to while it runs on at `placement`
    started: bool = False  # a token of the current placement came
    begun: set[str] = field(default_factory=set)  # workers of the current placement that had it in a step
    recompute: bool = False  # the next attempt prefills where it decodes
    kv_revision: str = ""  # of the workers that made its output
    avoid: set[str] = field(default_factory=set)  # workers that failed it since it last made a token
    failures: int = 0  # since it last made a token
    moves_failed: int = 0
    move_after: float = 0.0  # on the loop's clock: not tried again before
    last_failure: "Failed | None" = None
    retry: "TimerHandle | None" = None
    origin: str = ""  # id of the running leg that it was split from: its worker may call it so for a while

    @property
    def open(self) -> tuple[int, ...]:
        """Its choices that have not finished."""
        return tuple(c for c in self.choices if self.generation.choices[c].finish is None)

    @property
    def has_output(self) -> bool:
        return any(self.generation.choices[choice].tokens for choice in self.open)

    @property
    def workers(self) -> set[str]:
        """Workers that hold something of it."""
        placed = self.placement.workers if self.placement else set()
        return placed | self.move.workers if self.move else placed

    def listens(self, worker: str, attempt: int) -> bool:
        """Whether tokens of this attempt, sent by this worker, are for the client."""
        placement, move = self.placement, self.move
        if placement is not None and placement.attempt == attempt:
            return placement.decode == worker
        return move is not None and move.attempt == attempt and move.decode == worker

    def moved(self) -> None:
        """The receiver of the move owns the sequence now."""
        self.placement, self.move = self.move, None
        self.started = True
        self.moves_failed = 0

    def progressed(self) -> None:
        """A token came: what failed before says nothing about the next failure."""
        self.started = True
        self.failures = 0
        if self.avoid:
            self.avoid = set()

    def busy_at(self) -> str:
        """The worker that was computing it, as far as can be known from here."""
        if self.placement is None:
            return ""
        return self.placement.decode if self.started or not self.placement.prefill else self.placement.prefill

    def ran_at(self, worker: str) -> bool:
        """Whether the death of `worker` may be its doing: it was computed there, not just queued."""
        return worker in self.begun or (self.started and worker == self.busy_at())

    @property
    def stage(self) -> Stage:
        """How far the current attempt is, as far as its workers have told."""
        if self.placement is None:
            return "waiting"
        if self.started:
            return "decoding"
        return "prefilling" if self.begun else "queued"

    @property
    def part(self) -> "Part":
        """Which part of the system has it, as far as can be known from here."""
        if self.placement is None:
            return "gateway"
        if self.started:
            return "decode"
        if self.last_failure is not None and self.last_failure.code == "transfer":
            return "transfer"
        return "prefill"

    def touched_by(self, worker: str) -> bool:
        """Whether the loss of `worker` ends the current attempt. One that handed its prefill over is needed no more."""
        placement = self.placement
        if placement is None:
            return False
        return worker == placement.decode or (worker == placement.prefill and not self.started)
