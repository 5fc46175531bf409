"""A sub-request: what one id on the wire stands for. Which attempt runs where, and whose tokens count.

At first one sub-request carries all choices of a request; after a failure, or once its worker drains, each unfinished
choice has its own. Its stage changes by `lifecycle` alone.
"""

from dataclasses import dataclass, field

from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.routing.choose import PrefillAt
from legato_gateway.routing.rebalancing import MigrationReason
from legato_gateway.timers import Timer
from legato_protocol.stream import Failed, Part, TokenItem

NEVER = -1  # as `SubRequest.tried`


@dataclass(frozen=True, slots=True)
class AttemptPlace:
    """One attempt on its workers. `prefill` is empty where the decode worker prefills, for the reason `prefill_at`;
    epochs by worker name."""

    attempt: int
    prefill: str
    decode: str
    epochs: dict[str, str]
    prefill_at: PrefillAt = "separate"
    migrates: MigrationReason | None = None  # why it comes there from another decode worker

    @property
    def workers(self) -> set[str]:
        return {self.decode, self.prefill} - {""}


@dataclass(slots=True, eq=False)
class SubRequest:
    """`attempt` is the highest one given out. `place` and `target` are set by the registry alone."""

    id: str
    generation: RunningGeneration
    choices: tuple[int, ...]
    attempt: int = 0
    stage: Stage = Stage.ARRIVED
    place: AttemptPlace | None = None
    target: AttemptPlace | None = None  # where it migrates to, while it decodes on at `place`
    begun: set[str] = field(default_factory=set)  # workers of `place` that had it in a step
    arrived: bool = False  # the decode worker of `place` has received the hand-off
    recompute: bool = False  # the next attempt prefills where it decodes
    kv_revision: str = ""  # of the workers that made its output
    adapter_digest: str = ""  # of the adapter that they made it with
    avoid: set[str] = field(default_factory=set)  # workers that failed it since it last made a token
    failures: int = 0  # since it last made a token
    faulted_at: str = ""  # the worker at which its own computation failed since then
    last_failure: Failed | None = None
    delay: float = 0.0  # seconds of the next pause
    retry: Timer | None = None
    tried: int = NEVER  # `Fleet.openings` when no worker could take it last
    migrations_failed: int = 0
    migrate_after: float = 0.0  # on the clock of timers
    settled_until: float = 0.0  # on the clock of timers: before, it leaves no worker that is merely hot
    early: list[tuple[str, TokenItem]] = field(default_factory=list)  # by worker: they overtook logprobs of the prompt
    parent: str = ""  # id of the running sub-request that it was split from: its worker may call it so for a while

    @property
    def open(self) -> tuple[int, ...]:
        """Its choices that have not finished."""
        return tuple(c for c in self.choices if self.generation.choices[c].finish is None)

    @property
    def output(self) -> list[int]:
        """Tokens that continue the prompt. One of several choices has none, or it would have been split."""
        return self.generation.choices[self.choices[0]].tokens if len(self.choices) == 1 else []

    @property
    def has_output(self) -> bool:
        return any(self.generation.choices[choice].tokens for choice in self.open)

    @property
    def started(self) -> bool:
        """A token of the current attempt came."""
        return self.stage is Stage.DECODING or self.stage is Stage.MIGRATING

    @property
    def workers(self) -> set[str]:
        """Workers that hold something of it."""
        placed = self.place.workers if self.place else set()
        return placed | self.target.workers if self.target else placed

    def listens(self, worker: str, attempt: int) -> bool:
        """Whether tokens of this attempt, sent by this worker, are for the client."""
        place, target = self.place, self.target
        if place is not None and place.attempt == attempt:
            return place.decode == worker
        return target is not None and target.attempt == attempt and target.decode == worker

    @property
    def hands_off(self) -> bool:
        """True while the decode worker waits for the prefill worker's KV, as far as this gateway knows."""
        return self.place is not None and bool(self.place.prefill) and not (self.arrived or self.started)

    def needs(self, worker: str) -> bool:
        """True if the loss of `worker` ends the current attempt.

        A prefill worker is needed until its KV and the logprobs of the prompt have arrived. The target of a migration
        is needed: this gateway cannot know whether it had committed when it was lost, and if so, the source has nothing
        left.
        """
        place, target = self.place, self.target
        if target is not None and worker == target.decode:
            return True
        if place is None or worker not in place.workers:
            return False
        return worker == place.decode or self.hands_off or self.generation.lacks_scores

    def computed_by(self) -> str:
        """The worker that was computing it, as far as can be known from here."""
        if self.place is None:
            return ""
        return self.place.decode if self.started or not self.place.prefill else self.place.prefill

    def ran_at(self, worker: str) -> bool:
        """Whether the death of `worker` may be its doing: it was computed there, not just queued."""
        return worker in self.begun or (self.started and worker == self.computed_by())

    @property
    def part(self) -> Part:
        """Which part of the system has it, as far as can be known from here."""
        if self.place is None:
            return "gateway"
        if self.started:
            return "decode"
        if self.last_failure is not None and self.last_failure.code == "transfer":
            return "transfer"
        return "prefill"

    def apart(self, choice: int) -> "SubRequest":
        """What goes on with this choice alone, from the same stage."""
        return SubRequest(
            f"{self.id}/{choice}",
            self.generation,
            (choice,),
            self.attempt,
            self.stage,
            begun=set(self.begun),
            recompute=self.recompute,
            kv_revision=self.kv_revision,
            adapter_digest=self.adapter_digest,
            avoid=set(self.avoid),
            failures=self.failures,
            faulted_at=self.faulted_at,
            last_failure=self.last_failure,
        )
