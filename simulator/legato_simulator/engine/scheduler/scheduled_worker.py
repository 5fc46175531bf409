"""Workers and requests of the scheduler engine: the real scheduler, block pool and prefix cache, without a model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from legato_engine.policy import (
    Batch,
    BlockPool,
    EventLog,
    Rates,
    RecordedAcceptance,
    Request,
    Sampled,
    Scheduler,
    SchedulerLimits,
    StepResult,
    credits,
    load_frame,
)
from legato_gateway.policy import Need
from legato_operator.policy import Pool
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire.kv_events import KVEvent
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import Hello, Peer, Role
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.simulated_pod import SimulatedPod, WorkerKind

KV_REVISION = MODEL = "simulated"
TOKEN = Sampled(0)  # every answer repeats one token, because only its length matters


@dataclass(eq=False, slots=True)
class ScheduledRequest:
    """A request for exactly the tokens of its answer. `hashes` are the hashes of its prompt's full blocks."""

    simulated: SimulatedRequest
    hashes: list[bytes]
    expires: float  # seconds from the beginning: the deadline of the next token
    tenant: str = ""
    uncached: int = 0  # prompt tokens that no worker had cached when it arrived
    attempt: int = 0
    made: int = 0  # tokens of the answer before this attempt
    running: Request | None = None  # its state in the scheduler of its decode worker
    decoder: ScheduledWorker | None = None
    places: dict[ScheduledWorker, None] = field(default_factory=dict)  # workers that have a part of it
    tried: int = -1  # the fleet's `openings` when no worker could take it
    seen: int = 0  # tokens of the answer when `expires` was last extended
    settled_until: float = 0.0  # seconds from the beginning: it does not leave a hot worker earlier

    @property
    def id(self) -> str:
        return str(self.simulated.number)

    @property
    def prompt(self) -> int:
        return self.simulated.arrival.prompt

    @property
    def output(self) -> int:
        return self.simulated.arrival.output

    def known(self) -> int:
        """Returns the tokens of prompt and output so far."""
        return self.prompt + (self.running.outputs if self.running is not None else self.made)

    def is_late(self, now: float, patience: float) -> bool:
        """Returns True if no token came for `patience` seconds. As exact as the interval between calls."""
        made = self.known() - self.prompt
        if made > self.seen:
            self.seen, self.expires = made, now + patience
        return self.expires <= now

    def need(self) -> Need:
        """Returns its current needs from a worker."""
        known = self.known()
        return Need(self.id, known, self.prompt + self.output - known)

    def leave(self, worker: ScheduledWorker) -> None:
        """Removes it from a worker."""
        self.places.pop(worker, None)
        worker.prefilling.pop(self.id, None)
        worker.decoding.pop(self.id, None)

    def sub_request(self, room: int | None, known: int) -> Request:
        """Returns the scheduler's request, as a gateway's frame would make it."""
        return Request(
            id=self.id,
            attempt=self.attempt,
            tokens=[self.simulated.number] * known,  # unique: the ends of prompts are not shared
            prompt_len=self.prompt,
            params=SamplingParams(max_tokens=self.output, seed=0),
            deadline=math.inf,
            tenant=self.tenant,
            room=room,
            hashes=list(self.hashes),
        )


class ScheduledWorker(SimulatedPod):
    """The core without its model, peers and sockets. The profile determines the duration of steps."""

    def __init__(self, name: str, pool: Pool, kind: WorkerKind, created: float, *, role: Role, max_length: int) -> None:
        super().__init__(name, pool, kind, created)
        self.role: Role = role
        self.limits = SchedulerLimits(
            role=role,
            block_size=kind.block_size,
            max_length=max_length,
            chunk_tokens=kind.chunk_tokens,
            tpot=kind.tpot,
            max_running=kind.slots,
            windows=kind.windows,
            drafts=0 if kind.speculated is None else kind.speculated.drafts,
        )
        self._events = EventLog(name)
        self.blocks = BlockPool(kind.kv_tokens // kind.block_size, self._events, kind.windows, kind.block_size)
        drafter = None
        if kind.speculated is not None:
            drafter = RecordedAcceptance(kind.speculated.acceptance, lambda _request, _position: TOKEN.token)
        self.scheduler = Scheduler(self.limits, self.blocks, KV_REVISION, drafter)
        self.prefilling: dict[
            str, ScheduledRequest
        ] = {}  # requests whose prompts are computed here and that decode elsewhere
        self.decoding: dict[str, ScheduledRequest] = {}  # requests that decode here or will decode here
        self.deleted = False
        self.reported_at = 0.0  # time of its last load report
        self.reported_draining = False
        self.changed = True  # since the last report
        self.report_due = False  # a report is scheduled
        self.sends_until = 0.0  # time when all KV that it sends has arrived
        self._rates = Rates()
        self._batch: Batch | None = None
        self._launched = 0.0

    @property
    def in_flight(self) -> int:
        return len(self.decoding)

    @property
    def prompts(self) -> int:
        return len(self.prefilling)

    @property
    def peer(self) -> Peer:
        return Peer(self.name, self.name, b"-")

    @property
    def busy(self) -> bool:
        """True while a step runs."""
        return self._batch is not None

    def launch(self, now: float) -> float | None:
        """Begins a step and returns its duration in seconds, or None without work."""
        self._batch = self.scheduler.schedule(now)
        self._launched = now
        return None if self._batch is None else self.kind.times.of(self._batch)

    def end_step(self, now: float) -> StepResult:
        """Ends the running step and returns its result."""
        batch, self._batch = self._batch, None
        assert batch is not None
        result = self.scheduler.process(batch, tuple([(TOKEN,) * len(row.draws) for row in batch.rows]), now)
        self._rates.measure(result.prompt_tokens, result.decode_rows, now - self._launched, now, result.accepted)
        return result

    def take_events(self) -> tuple[KVEvent, ...]:
        """Returns the events of the prefix cache since the last call."""
        return self._events.take()

    def hello(self) -> Hello:
        """Returns its first frame to a gateway."""
        return Hello(
            worker=self.name,
            epoch=self.name,
            role=self.role,
            kv_revision=KV_REVISION,
            weights="",
            layout="",
            block_size=self.kind.block_size,
            num_blocks=self.blocks.size,
            windows=self.kind.windows,
            max_length=self.limits.max_length,
            address=b"-",
            transport="simulated",
            model=MODEL,
        )

    def load(self, now: float) -> Load:
        """Returns its load report."""
        load, draining = self.scheduler.load(), self.draining_since is not None
        return load_frame(
            load,
            self._rates,
            now,
            draining=draining,
            credits=credits(self.limits.max_waiting, load.waiting, draining),
            slots=self.limits.max_running,
        )
