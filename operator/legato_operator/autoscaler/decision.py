"""What the autoscaler decides, with every number that it was decided from. Frozen, so that two decisions compare."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from legato_operator.autoscaler.equation import evaluate
from legato_operator.autoscaler.signals import Pool
from legato_operator.autoscaler.window import Window

ARRIVALS = "Arrivals"
BACKLOG = "Backlog"
QUEUEING = "Queueing"
KV_BLOCKS = "KVBlocks"
STEP_TIME = "StepTime"
SLOTS = "Slots"
COMING_SEQUENCES = "ComingSequences"
DECODE_ROOM = "DecodeRoom"
ACTIVATION = "Activation"
PREFILL_AND_DECODE = "PrefillAndDecode"
IDLE = "Idle"
STABILIZING = "Stabilizing"
COOLING_DOWN = "CoolingDown"
METRICS_MISSING = "MetricsMissing"
WITHIN_BOUNDS = "Bounds"

REASONS = {
    ARRIVALS: "prompt tokens arriving per second",
    QUEUEING: "prompts that would wait too long",
    BACKLOG: "prompt tokens that will still wait when a worker started now would serve",
    KV_BLOCKS: "predicted KV blocks",
    STEP_TIME: "predicted time of a decode step",
    SLOTS: "sequences that decode at once",
    COMING_SEQUENCES: "sequences that will decode when a worker started now would serve",
    DECODE_ROOM: "a queue whose head waits for room in decode workers",
    ACTIVATION: "requests for which no decode worker is ready",
    PREFILL_AND_DECODE: "prompts and decode steps of unified workers together",
    IDLE: "nothing needs a worker",
    STABILIZING: "a higher wish is still within `scaling.scaleDownStabilization`",
    COOLING_DOWN: "the last worker stays until nothing has arrived or run for `scaling.idleAfter`",
    METRICS_MISSING: "a signal is missing, so the pool does not shrink",
    WITHIN_BOUNDS: "`min` or `max` of the pool",
}


@dataclass(frozen=True)
class Term:
    """One way in which the signals ask for workers. `workers` follows from `numbers` alone, by `equation`."""

    reason: str
    workers: float | None  # a fraction too; None: a number is missing
    equation: str  # over keys of `numbers`
    numbers: Mapping[str, float]
    missing: str = ""  # what is not known, where that is so

    @classmethod
    def of(cls, reason: str, equation: str, numbers: Mapping[str, float]) -> "Term":
        """The term whose number of workers the equation gives."""
        return cls(reason, evaluate(equation, numbers), equation, numbers)

    @classmethod
    def unknown(cls, reason: str, missing: str) -> "Term":
        """A term that cannot be had."""
        return cls(reason, None, "", {}, missing)

    @property
    def known(self) -> float:
        """The number of workers; 0 where it is missing."""
        return self.workers or 0.0


@dataclass(frozen=True)
class PoolDecision:
    """Of one pool."""

    pool: Pool
    current: int  # `spec.replicas` when it was decided
    wish: int
    needed: int  # by the terms alone: before bounds, window and what is missing
    highest: int  # the window's maximum
    reason: str
    terms: tuple[Term, ...]
    missing: tuple[str, ...] = ()
    capped_by: str = ""  # the field that keeps the wish from being what is needed
    change: str = ""  # what would change the wish
    unmet: Mapping[str, str] = field(default_factory=dict)  # objectives that no number of workers meets, and why
    allowed: int | None = None  # what the limits of all pools together make of the wish, where that differs

    @property
    def changes(self) -> bool:
        """Whether the pool is to have another size."""
        return self.wish != self.current


@dataclass(frozen=True)
class Decision:
    """Of a service: what each of its pools should have, and the windows for the next decision."""

    pools: Mapping[str, PoolDecision]
    windows: Mapping[str, Window]
