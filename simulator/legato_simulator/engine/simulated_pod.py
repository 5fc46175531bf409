"""A worker as the plan observes it: age, readiness, draining and load."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from legato_engine.policy import Speculated, StepTimes
from legato_operator.policy import Pool


@dataclass(frozen=True)
class WorkerKind:
    """Properties that all workers of a pool share. `rate_error` is their reported prefill rate ÷ the true one."""

    times: StepTimes
    kv_tokens: int
    chunk_tokens: int
    block_size: int
    tpot: float
    slots: int
    prefix_block: int  # tokens per prefix id
    start: float  # seconds until a new worker serves
    rate_error: float = 1.0
    windows: tuple[int, ...] = ()  # of groups of layers that take further blocks
    speculated: Speculated | None = None

    def decoding(self, rows: int, context: float) -> StepTimes:
        """Returns the times of steps that only decode these rows, for each token of a sequence."""
        if self.speculated is None or not rows:
            return self.times
        return self.times.each_token(rows, int(context), self.speculated)


class SimulatedPod(ABC):
    """One worker of a pool. Times in seconds from the beginning of the workload. Engines implement its load."""

    def __init__(self, name: str, pool: Pool, kind: WorkerKind, created: float) -> None:
        self.name, self.pool, self.kind = name, pool, kind
        self.created, self.serves_at = created, created + kind.start
        self.draining_since: float | None = None

    def serves(self, now: float) -> bool:
        """Returns True if it is ready, including while it drains."""
        return now >= self.serves_at

    def takes(self, now: float) -> bool:
        """Returns True if requests may be sent to it."""
        return now >= self.serves_at and self.draining_since is None

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Sequences that decode here or will decode here."""

    @property
    @abstractmethod
    def prompts(self) -> int:
        """Prompts that are queued or computed here."""

    @property
    def idle(self) -> bool:
        return not (self.in_flight or self.prompts)
