"""Where the autoscaler's signals come from: here, what workers tell on their control ports. No decisions.

Workers see what gateways have sent them. What arrived is what they computed, and what their queues grew by; so this
source knows no lengths of prompts, and nothing of requests that gateways hold.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from legato_operator.api import roles
from legato_operator.autoscaler.signals import Blocks, Pool, PrefillCost, PromptLengths, Signals, Traffic, WorkerSignals
from legato_operator.observing.observed import Observed, Pod, ReportedLoad

WINDOW = 60.0  # seconds over which arrivals are counted
RECENT = 10.0


class SignalSource(Protocol):
    """Who knows what the autoscaler decides from."""

    async def signals(self, observed: Observed) -> Signals:
        """Of the service that was observed, now. What could not be asked is None there; nothing is raised for it."""
        ...

    def forget(self, uid: str) -> None:
        """A service has ended, or is not scaled any more."""
        ...


@dataclass
class _Memory:
    """Of one service: what its workers had computed, and what arrived since, as (seconds, tokens)."""

    begun: float
    before: dict[tuple[str, str], int] = field(default_factory=dict)  # worker and epoch
    arrived: deque[tuple[float, int]] = field(default_factory=deque)


class WorkerSignalSource:
    """A `SignalSource` from the workers' states that a pass has read anyway."""

    def __init__(self) -> None:
        self._services: dict[str, _Memory] = {}

    async def signals(self, observed: Observed) -> Signals:
        memory = self._services.setdefault(observed.uid, _Memory(observed.now))
        workers = [pod for pod in observed.pods if pod.pool in roles.BOTH]
        computing = [pod for pod in workers if pod.pool == roles.PREFILL] or workers
        memory.arrived.append((observed.now, _arrived(memory, computing)))
        while memory.arrived[0][0] <= observed.now - WINDOW:
            memory.arrived.popleft()
        return Signals(tuple(_worker(pod) for pod in workers), _traffic(memory, observed.now))

    def forget(self, uid: str) -> None:
        self._services.pop(uid, None)


def _arrived(memory: _Memory, workers: list[Pod]) -> int:
    """Tokens since the last look. One seen for the first time has told no difference yet."""
    loads = {(pod.name, pod.state.load.epoch): pod.state.load for pod in workers if pod.state and pod.state.load}
    totals = {key: load.prompt_tokens + load.queue_tokens for key, load in loads.items()}
    grown = sum(max(0, total - memory.before[key]) for key, total in totals.items() if key in memory.before)
    memory.before = {**{key: memory.before[key] for key in memory.before if _exists(key, workers)}, **totals}
    return grown


def _exists(key: tuple[str, str], workers: list[Pod]) -> bool:
    return any(pod.name == key[0] for pod in workers)


def _traffic(memory: _Memory, now: float) -> Traffic:
    """Counted for as long as anybody looked, at least for the shorter time."""
    seconds = min(WINDOW, max(RECENT, now - memory.begun))
    recent = sum(tokens for at, tokens in memory.arrived if at > now - RECENT)
    return Traffic(seconds, _lengths(sum(tokens for _, tokens in memory.arrived)), RECENT, _lengths(recent))


def _lengths(tokens: int) -> tuple[PromptLengths, ...]:
    """As single tokens: where no length is known, none is too long."""
    return (PromptLengths(1, tokens, tokens),) if tokens else ()


def _worker(pod: Pod) -> WorkerSignals:
    load = pod.state.load if pod.state is not None else None
    pool: Pool = "prefill" if pod.pool == roles.PREFILL else "decode"
    known = WorkerSignals(
        pod.name,
        pool,
        ready=pod.ready,
        draining=pod.on_its_way_out or pod.failed or pod.lost,
        age=pod.age,
        start_seconds=pod.start_seconds,
    )
    return known if load is None else _with_load(known, load)


def _with_load(known: WorkerSignals, load: ReportedLoad) -> WorkerSignals:
    return WorkerSignals(
        known.name,
        known.pool,
        known.ready,
        known.draining,
        known.age,
        known.start_seconds,
        sample_age=0.0,
        queue_tokens=load.queue_tokens,
        parked_tokens=0,
        prefill_cost=PrefillCost(1 / load.prefill_rate) if load.prefill_rate > 0 else None,
        blocks=Blocks(load.free_blocks, load.cached_blocks, load.used_blocks, load.quarantined_blocks),
        running=load.running,
        waiting=load.waiting,
    )
