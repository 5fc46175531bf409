"""What a scaler sees, with as little in it as possible; tests say what matters to them."""

from collections.abc import Mapping
from typing import Any

from legato_cli.simulation.scaler import Observation, Scaler
from legato_operator.autoscaler.signals import Blocks, Signals, WorkerSignals

QUIET: dict[str, Any] = {
    "now": 0.0,
    "signals": Signals(()),
    "sizes": {"prefill": 2, "decode": 4},
    "requests": 0.0,
    "in_flight": {"prefill": 0, "decode": 0},
    "queue_tokens": 0,
    "kv_usage": 0.0,
}


def observed(**changes: Any) -> Observation:
    """At 0 s, of 2 prefill and 4 decode workers with nothing to do, all of them ready unless `ready` says otherwise."""
    found = QUIET | changes
    return Observation(**{"ready": found["sizes"], **found})


def sizes_over(scaler: Scaler, seconds: float, begin: float = 0.0, **changes: Any) -> Mapping[str, int]:
    """The last wish after the same was seen every 2 s. Wishes are granted at once."""
    sizes, now = changes.pop("sizes", QUIET["sizes"]), begin
    while now <= begin + seconds:
        sizes = scaler.sizes(observed(now=now, sizes=sizes, **changes))
        now += 2
    return sizes


def worker(name: str, pool: Any, queue_tokens: int = 0, used: int = 0, total: int = 100) -> WorkerSignals:
    """One that serves."""
    return WorkerSignals(name, pool, ready=True, queue_tokens=queue_tokens, blocks=Blocks(total - used, 0, used))
