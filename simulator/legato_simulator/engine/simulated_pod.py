"""A worker as the plan sees it: when it was created, whether it serves or drains, how busy it is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from legato_engine.policy import StepTimes
from legato_operator.policy import Pool


@dataclass(frozen=True)
class WorkerKind:
    """What all workers of a service share. `told` is the error of the prefill rate that they tell: told ÷ true."""

    times: StepTimes
    kv_tokens: int
    chunk_tokens: int
    block_size: int
    tpot: float
    slots: int
    prefix_block: int  # tokens that one id of a prefix stands for
    start: float  # seconds
    told: float = 1.0

    @property
    def rate(self) -> float:
        """Prompt tokens a second in full steps, without context."""
        return 1 / (self.times.per_token + self.times.per_step / self.chunk_tokens)


class SimulatedPod(ABC):
    """One worker of a pool. An engine says what it does. Times in seconds from the beginning of the workload."""

    def __init__(self, name: str, pool: Pool, number: int, kind: WorkerKind, created: float) -> None:
        self.name, self.pool, self.number, self.kind = name, pool, number, kind
        self.created, self.serves_at = created, created + kind.start
        self.draining_since: float | None = None

    def serves(self, now: float) -> bool:
        """Whether it is ready; also while it drains."""
        return now >= self.serves_at

    def takes(self, now: float) -> bool:
        """Whether requests may be sent to it."""
        return now >= self.serves_at and self.draining_since is None

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Sequences that decode here or will."""

    @property
    @abstractmethod
    def prompts(self) -> int:
        """Requests that are queued or computed here."""

    @property
    def idle(self) -> bool:
        return not (self.in_flight or self.prompts)
