"""Limits of the queue, and weights of sharing. Pure: part of `admission`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from legato_gateway.routing.scorers import Objectives


@dataclass(frozen=True, slots=True)
class Quota:
    """A tenant's token bucket: `rate` tokens per second, at most `burst` saved up."""

    rate: float
    burst: float


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of the queue, and weights of sharing."""

    max_queued: int = 2048
    max_queued_tokens: int = 4_000_000
    backlog_seconds: float = 2.0  # prefill work queued on each worker before requests are queued here
    min_backlog_tokens: int = 8192  # … but at least this on all of them together
    objectives: Objectives | None = None  # decode workers help prefill workers to meet them; None: they do not help
    refuse_beyond: Objectives | None = None  # requests that would miss them are refused; None: they queue
    backfill_seconds: float = 10.0  # duration of a usual answer, after which room is freed
    urgent_within: float = 60.0  # seconds: a tenant's deadlines farther away count as equal
    output_weight: float = 2.0
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # by tenant; "*" applies to all others
