"""A sub-request: the unit that has one id on the wire, with its current attempt and place.

At first one sub-request carries all choices of a request. After a failure, or when its worker drains, each unfinished
choice gets its own. Only `lifecycle` changes its stage.
"""

from dataclasses import dataclass, field

from legato_gateway.relay.attempt_place import AttemptPlace
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.lifecycle import Stage
from legato_gateway.timers import Timer
from legato_protocol.wire.stream import Failed, Part, TokenItem

NEVER = -1  # as `SubRequest.tried`


@dataclass(slots=True, eq=False)
class SubRequest:
    """`attempt` is the latest one. Only the registry sets `place` and `target`."""

    id: str
    generation: RunningGeneration
    choices: tuple[int, ...]
    attempt: int = 0
    stage: Stage = Stage.ARRIVED
    place: AttemptPlace | None = None
    target: AttemptPlace | None = None  # where it migrates to, while it decodes on at `place`
    started_on: set[str] = field(default_factory=set)  # workers of `place` that had it in a step
    arrived: bool = False  # the decode worker of `place` has the hand-off
    recompute: bool = False  # the next attempt prefills on its decode worker
    placed_at: float = 0.0  # on the clock of timers
    kv_revision: str = ""  # of the workers that made its output
    adapter_digest: str = ""  # of the adapter that its output was made with
    avoid: set[str] = field(default_factory=set)  # workers that failed it since it last made a token
    failures: int = 0  # since it last made a token
    faulted_at: str = ""  # the worker on which its computation faulted since then
    last_failure: Failed | None = None
    delay: float = 0.0  # seconds of the next pause
    retry: Timer | None = None
    tried: int = NEVER  # `Fleet.openings` when no worker could take it last
    migrations_failed: int = 0
    migrate_after: float = 0.0  # on the clock of timers
    settled_until: float = 0.0  # on the clock of timers: it leaves no hot worker before
    early: list[tuple[str, TokenItem]] = field(default_factory=list)  # by worker: tokens before logprobs of the prompt
    parent: str = ""  # id of the running sub-request it was split from: its worker may use that for a while

    @property
    def open(self) -> tuple[int, ...]:
        """Its unfinished choices."""
        return tuple(c for c in self.choices if self.generation.choices[c].finish is None)

    @property
    def output(self) -> list[int]:
        """Tokens that continue the prompt; none while it has several choices, as it is split before."""
        return self.generation.choices[self.choices[0]].tokens if len(self.choices) == 1 else []

    @property
    def has_output(self) -> bool:
        return any(self.generation.choices[choice].tokens for choice in self.open)

    @property
    def decoding(self) -> bool:
        """True once the current attempt has a token."""
        return self.stage is Stage.DECODING or self.stage is Stage.MIGRATING

    @property
    def workers(self) -> set[str]:
        """Workers that have part of it."""
        placed = self.place.workers if self.place else set()
        return placed | self.target.workers if self.target else placed

    def listens(self, worker: str, attempt: int) -> bool:
        """True if tokens of this attempt from this worker are for the client."""
        place, target = self.place, self.target
        if place is not None and place.attempt == attempt:
            return place.decode == worker
        return target is not None and target.attempt == attempt and target.decode == worker

    @property
    def hands_off(self) -> bool:
        """True while the decode worker waits for the prefill worker's KV, as far as this gateway knows."""
        return self.place is not None and bool(self.place.prefill) and not (self.arrived or self.decoding)

    def needs(self, worker: str) -> bool:
        """True if the loss of `worker` ends the current attempt.

        A prefill worker is needed until its KV and the logprobs of the prompt have arrived. The target of a migration
        is needed, as it may have committed before the loss, and then the source has nothing left.
        """
        place, target = self.place, self.target
        if target is not None and worker == target.decode:
            return True
        if place is None or worker not in place.workers:
            return False
        return worker == place.decode or self.hands_off or self.generation.lacks_scores

    def computed_by(self) -> str:
        """Returns the worker that was computing it, as far as this gateway knows."""
        if self.place is None:
            return ""
        return self.place.decode if self.decoding or not self.place.prefill else self.place.prefill

    def ran_at(self, worker: str) -> bool:
        """True if it may have caused the death of `worker`: it was computed there, not only queued."""
        return worker in self.started_on or (self.decoding and worker == self.computed_by())

    @property
    def part(self) -> Part:
        """The part of the system that has it, as far as this gateway knows."""
        if self.place is None:
            return "gateway"
        if self.decoding:
            return "decode"
        if self.last_failure is not None and self.last_failure.code == "transfer":
            return "transfer"
        return "prefill"

    def split_off(self, choice: int) -> "SubRequest":
        """Returns a sub-request that continues this choice from the same stage."""
        return SubRequest(
            f"{self.id}/{choice}",
            self.generation,
            (choice,),
            self.attempt,
            self.stage,
            started_on=set(self.started_on),
            recompute=self.recompute,
            kv_revision=self.kv_revision,
            adapter_digest=self.adapter_digest,
            avoid=set(self.avoid),
            failures=self.failures,
            faulted_at=self.faulted_at,
            last_failure=self.last_failure,
        )
