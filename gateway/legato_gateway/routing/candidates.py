"""Workers that could take a part of a request, with their cost."""

from dataclasses import dataclass
from math import inf
from zlib import crc32

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.kv_sources import KVFetch, KVSources
from legato_gateway.routing.scorers import Weights
from legato_gateway.routing.tiers import CachedBlocks, cached_blocks


@dataclass(slots=True)
class WorkerCandidate:
    """A worker that could take its part, with the cost that `best` compares."""

    worker: WorkerView
    blocks: CachedBlocks
    cached: int  # tokens in any tier
    uncached: int
    to_compute: int  # uncached tokens, less those that it fetches or earlier prompts are predicted to compute
    cost: float
    fetch: KVFetch | None  # of cached blocks from another worker
    rank: int  # the cost, rounded


@dataclass(frozen=True, slots=True)
class Costs:
    """Builds candidates from workers that could take `need`, and the blocks of it that they have cached."""

    need: Need
    predicted: Matches
    weights: Weights
    usual_rate: float
    usual_step: float
    sources: KVSources | None = None  # None: no worker fetches cached blocks

    def cached(self, worker: WorkerView, matched: int, matches: Matches) -> CachedBlocks:
        """Returns the blocks that a worker with `matched` ones in its arena would use."""

        def seconds(blocks: int) -> float:
            left = self.need.tokens - blocks * worker.block_size
            return scorers.own_seconds(worker, self.need.tokens, left, self.usual_rate)

        return cached_blocks(worker, self.need, matched, matches, seconds)

    def prefiller(self, worker: WorkerView, blocks: CachedBlocks) -> WorkerCandidate:
        left, fetch = self._to_compute(worker, blocks)
        return self._candidate(worker, blocks, left, self._prefill(worker, left, fetch), fetch)

    def decoder(self, worker: WorkerView, blocks: CachedBlocks) -> WorkerCandidate:
        left = self.need.tokens - blocks.count * worker.block_size
        return self._candidate(worker, blocks, left, self._decode(worker, blocks) + scorers.transfer_seconds(left))

    def unified(self, worker: WorkerView, blocks: CachedBlocks) -> WorkerCandidate:
        left, fetch = self._to_compute(worker, blocks)
        cost = self._decode(worker, blocks) + self._prefill(worker, left, fetch)
        return self._candidate(worker, blocks, left, cost, fetch)

    def seconds(self, prefiller: WorkerCandidate) -> float:
        """Returns the seconds until the prompt would be computed on a worker that does nothing else: after its queue.

        The only prompt of its tenant waits at most for one like it of each other tenant.
        """
        of = prefiller.worker, self.need.tokens, prefiller.to_compute, self.usual_rate
        queued = scorers.prefill_seconds(*of)
        seconds = min(queued, self.need.tenants * scorers.own_seconds(*of)) if self.need.tenants else queued
        return seconds + (prefiller.fetch.delay if prefiller.fetch else 0.0)

    def seconds_alongside(self, decoder: WorkerCandidate, tpot: float) -> float:
        """Returns the same for a decode worker whose prompts only get the time that `tpot` leaves of each step."""
        share = scorers.prompt_share(decoder.worker, tpot, self.usual_step)
        return self.seconds(decoder) / share if share else inf

    def late(self, separate: float, snapshot: FleetSnapshot, ttft: float) -> bool:
        """True if prefill workers that take `separate` seconds miss `ttft`, for this or for requests queued after."""
        prefillers = [worker for worker in snapshot.workers if worker.prefills and worker.usable]
        rate = sum(worker.prefill_rate or self.usual_rate for worker in prefillers)
        return self.need.waited + separate + self.need.behind / rate > ttft

    def _to_compute(self, worker: WorkerView, blocks: CachedBlocks) -> tuple[int, KVFetch | None]:
        """Returns the tokens that will be left to compute when its prefill starts, and the fetch before that."""
        matched = blocks.count
        if worker.name in self.predicted:
            matched = max(matched, filters.matched(worker, self.need, self.predicted))
        fetch = self.sources.best(worker, matched) if self.sources is not None else None
        return self.need.tokens - (fetch.blocks if fetch else matched) * worker.block_size, fetch

    def _prefill(self, worker: WorkerView, left: int, fetch: KVFetch | None) -> float:
        delay = fetch.delay if fetch else 0.0
        return delay + scorers.prefill_cost(worker, self.need.tokens, left, self.usual_rate, self.weights)

    def _decode(self, worker: WorkerView, blocks: CachedBlocks) -> float:
        return scorers.decode_load(worker, self.need.tokens, blocks.arena, self.usual_step, self.weights)

    def _candidate(
        self, worker: WorkerView, blocks: CachedBlocks, left: int, cost: float, fetch: KVFetch | None = None
    ) -> WorkerCandidate:
        cost += blocks.seconds
        if self.need.adapter:
            _, digest = filters.lineage(worker, self.need)
            cost += scorers.adapter_cost(worker, digest, self.weights)
        cached = blocks.count * worker.block_size
        uncached, rank = self.need.tokens - cached, scorers.rounded(cost)
        return WorkerCandidate(worker, blocks, cached, uncached, left, cost, fetch, rank)


def best(need: Need, candidates: list[WorkerCandidate]) -> WorkerCandidate:
    """Returns the cheapest candidate. Among equals, the fewest sequences win, then a hash that spreads requests."""
    lowest = min(candidate.rank for candidate in candidates)
    equal = [candidate for candidate in candidates if candidate.rank == lowest]
    if len(equal) == 1:
        return equal[0]
    request = crc32(need.id.encode())
    return min(equal, key=lambda c: (c.worker.in_flight, crc32(c.worker.name.encode(), request)))
