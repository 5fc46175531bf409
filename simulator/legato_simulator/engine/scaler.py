"""Who decides how many workers each pool should have, as the simulator asks: Legato's autoscaler, or another one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from legato_operator.policy import Signals, Spec, Window, decide


@dataclass(frozen=True)
class Observation:
    """What any autoscaler may look at, every 2 s. Pools are `prefill` and `decode`, by the manifest's names."""

    now: float  # seconds from the beginning
    signals: Signals  # as the operator would have them
    sizes: Mapping[str, int]  # desired workers by pool, now
    ready: Mapping[str, int]  # workers that serve
    requests: float  # that arrived, per second over the last 10 s
    in_flight: Mapping[str, int]  # requests in a pool's hands: queued or computing prefill; decoding or parked
    queue_tokens: int  # uncached prompt tokens that are queued or being prefilled
    kv_usage: float  # used part of the KV of decode workers that serve, 0 to 1


class Scaler(Protocol):
    """An autoscaler. It may remember what it saw: one serves one run."""

    name: str

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        """Wishes by pool. The simulator keeps them within the manifest's bounds, ratio and budget, for everybody."""
        ...


class LegatoScaler:
    """The operator's own decision, with its windows."""

    def __init__(self, spec: Spec) -> None:
        self.name = "legato"
        self._spec = spec
        self._windows: Mapping[str, Window] = {}

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        decision = decide(seen.signals, self._windows, self._spec, seen.sizes, seen.now)
        self._windows = decision.windows
        return {pool: made.desired for pool, made in decision.pools.items()}
