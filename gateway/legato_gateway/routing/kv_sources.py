"""Cached blocks that a worker fetches from another one, where that is predicted to be faster than computing them. Pure.

A prompt that fetches keeps its place in its worker's queue. Beyond the wait there, a fetch may take half of the time
that it saves: predictions err, and a source may die or evict the blocks meanwhile. So a failed one delays the prompt by
at most half of its computation.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView

LATENCY = 0.01  # seconds of a fetch in addition to its puts: three messages, sent between steps of both workers
SHARE = 0.5  # delay of a prompt by a fetch at most, as a share of the time that it saves
MOST_SOURCES = 4  # compared for each worker


@dataclass(frozen=True, slots=True)
class KVFetch:
    """The first `blocks` blocks of the sequence come from `source`, in `seconds` as predicted and at most `budget`.

    `delay` is the part of `seconds` that the prompt would not wait in its worker's queue anyway.
    """

    source: str
    blocks: int
    seconds: float
    delay: float
    budget: float


@dataclass(frozen=True, slots=True)
class _Holder:
    worker: WorkerView
    blocks: int


@dataclass(frozen=True, slots=True)
class KVSources:
    """Workers that have cached a part of the sequence of `need`, by the workers that they can send blocks to."""

    need: Need
    usual_rate: float  # prompt tokens per second, for workers without a measurement
    usual_put_rate: float  # blocks per second, likewise
    holders: dict[object, list[_Holder]] = field(default_factory=dict)

    @classmethod
    def of(cls, need: Need, snapshot: FleetSnapshot, matches: Matches, usual_rate: float) -> "KVSources":
        """Returns the sources of the fleet: usable workers with a transport, the longest prefixes first."""
        holders: defaultdict[object, list[_Holder]] = defaultdict(list)
        for worker in snapshot.workers:
            if matches.get(worker.name) and worker.usable and worker.address:
                blocks = filters.matched(worker, need, matches)
                holders[_group(worker, need)].append(_Holder(worker, blocks))
        for group in holders.values():
            group.sort(key=lambda holder: (-holder.blocks, holder.worker.in_flight))
            del group[MOST_SOURCES:]
        return cls(need, usual_rate, scorers.usual_put_rate(snapshot), dict(holders))

    def best(self, worker: WorkerView, matched: int) -> KVFetch | None:
        """Returns the fetch that saves `worker` the most time, or None if no fetch pays. The worker has, or will have,
        `matched` blocks."""
        holders = self.holders.get(_group(worker, self.need), ()) if worker.address else ()
        others = [holder for holder in holders if holder.worker.name != worker.name]
        gains = [gain for holder in others if (gain := self._gain(worker, matched, holder)) is not None]
        return max(gains, key=lambda gain: gain[0])[1] if gains else None

    def _gain(self, worker: WorkerView, matched: int, holder: _Holder) -> tuple[float, KVFetch] | None:
        """Returns the seconds that a fetch saves after its delay, and the fetch; None if it does not pay."""
        tokens, size = self.need.tokens, worker.block_size
        left, rest = tokens - matched * size, tokens - max(holder.blocks, matched) * size
        saved = scorers.own_seconds(worker, tokens, left, self.usual_rate) - scorers.own_seconds(
            worker, tokens, rest, self.usual_rate
        )
        moved = max(holder.blocks - matched, worker.blocks_of(holder.blocks) - worker.blocks_of(matched))
        seconds = LATENCY + moved / (holder.worker.put_rate or self.usual_put_rate)
        wait = scorers.queue_seconds(worker, self.usual_rate)
        delay = max(0.0, seconds - wait)
        if saved <= 0 or delay > SHARE * saved:
            return None
        return saved - delay, KVFetch(holder.worker.name, holder.blocks, seconds, delay, wait + SHARE * saved)


def _group(worker: WorkerView, need: Need) -> object:
    """Returns the key of the workers that can send each other blocks of this sequence."""
    return filters.partners(worker, need), worker.block_size
