"""Decisions of the autoscaler with every input, frozen so that decisions can be compared."""

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
CONFIRMING = "Confirming"

PASSING = frozenset({ACTIVATION, BACKLOG, COMING_SEQUENCES, DECODE_ROOM})  # reasons that end with a queue or a surge
SAMPLED = frozenset({ARRIVALS, QUEUEING})  # reasons from a sample: the prompts of the last minute
STATES = frozenset({IDLE, STABILIZING, COOLING_DOWN, METRICS_MISSING, WITHIN_BOUNDS, CONFIRMING})  # not of a term

REASONS = {
    ARRIVALS: "prompt tokens arriving per second",
    QUEUEING: "prompts that would wait too long",
    BACKLOG: "prompt tokens that will still wait when a worker started now would serve",
    KV_BLOCKS: "predicted KV blocks",
    STEP_TIME: "predicted time of a decode step",
    SLOTS: "sequences that decode concurrently",
    COMING_SEQUENCES: "sequences that will decode when a worker started now would serve",
    DECODE_ROOM: "a queue whose head waits for room in decode workers",
    ACTIVATION: "requests for which no decode worker is ready",
    PREFILL_AND_DECODE: "prompts and decode steps of unified workers together",
    IDLE: "nothing needs a worker",
    STABILIZING: "a higher desired size is still within `scaling.scaleDownStabilization`",
    COOLING_DOWN: "the last worker stays until nothing has arrived or run for `scaling.idleAfter`",
    METRICS_MISSING: "a signal is missing, so the pool does not shrink",
    WITHIN_BOUNDS: "`min` or `max` of the pool",
    CONFIRMING: "prompts of the last minute need more workers, but not for long enough yet",
}


@dataclass(frozen=True)
class Term:
    """One reason to need workers. `workers` is `equation` evaluated over `numbers`."""

    reason: str
    workers: float | None  # not rounded; None: an input is missing
    equation: str  # over keys of `numbers`
    numbers: Mapping[str, float]
    missing: str = ""  # the missing input, if any

    @classmethod
    def from_equation(cls, reason: str, equation: str, numbers: Mapping[str, float]) -> "Term":
        """Returns a term with the value of an equation."""
        return cls(reason, evaluate(equation, numbers), equation, numbers)

    @classmethod
    def unknown(cls, reason: str, missing: str) -> "Term":
        """Returns a term without a value."""
        return cls(reason, None, "", {}, missing)

    @property
    def known(self) -> float:
        """Number of workers; 0 if an input is missing."""
        return self.workers or 0.0


@dataclass(frozen=True)
class PoolDecision:
    """The decision for one pool."""

    pool: Pool
    current: int  # `spec.replicas` at the time of the decision
    desired: int
    needed: int  # only by the terms: before bounds, window and missing signals
    highest: int  # maximum of the window
    reason: str
    terms: tuple[Term, ...]
    missing: tuple[str, ...] = ()
    capped_by: str = ""  # the field that makes `desired` differ from `needed`
    change: str = ""  # the condition for another desired size, in words
    unmet: Mapping[str, str] = field(default_factory=dict)  # objectives that more workers cannot meet, with the reason
    allowed: int | None = None  # `desired` within the limits of all pools, if it differs

    @property
    def changes(self) -> bool:
        """True if the pool should change its size."""
        return self.desired != self.current


@dataclass(frozen=True)
class Decision:
    """The decisions for a service's pools, and the windows for the next decision."""

    pools: Mapping[str, PoolDecision]
    windows: Mapping[str, Window]
