"""A request in the scheduler engine: its progress through gateway and schedulers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from legato_engine.policy import Request
from legato_gateway.policy import Need
from legato_protocol.sampling.parameters import SamplingParams
from legato_simulator.engine.request import SimulatedRequest

if TYPE_CHECKING:
    from legato_simulator.engine.scheduler.scheduled_worker import ScheduledWorker


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
