"""How much is held, and how service is shared. Pure: part of `admission`."""

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
    """How much is held, and how service is shared."""

    max_held: int = 2048
    max_held_tokens: int = 4_000_000
    backlog_seconds: float = 2.0  # of prefill work that each worker may have queued before requests are held here
    min_backlog_tokens: int = 8192  # … but all of them together never less than this
    objectives: Objectives | None = None  # that decode workers help prefill workers to keep; None: they do not help
    backfill_seconds: float = 10.0  # as long as an answer of usual length takes, which is what frees room
    urgent_within: float = 60.0  # seconds: of a tenant's requests, deadlines farther away are all alike
    output_weight: float = 2.0
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # by tenant; "*" is everyone else's
