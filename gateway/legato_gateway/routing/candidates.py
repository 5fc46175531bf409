"""The workers that could take a part of a request, and what that costs."""

from dataclasses import dataclass
from math import inf
from zlib import crc32

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Weights


@dataclass(slots=True)
class Candidate:
    """A worker that could take its part, and what that costs; `best` compares them."""

    worker: WorkerView
    cached: int
    uncached: int
    to_compute: int  # of the uncached: some of them others before it are predicted to compute
    cost: float
    rank: int  # the cost, as far as it counts


@dataclass(frozen=True, slots=True)
class Costs:
    """Makes candidates of the workers that could take `need`, which hold `matched` blocks of it."""

    need: Need
    predicted: Matches
    weights: Weights
    usual_rate: float
    usual_step: float

    def prefiller(self, worker: WorkerView, matched: int) -> Candidate:
        left = self._to_compute(worker, matched)
        return self._candidate(worker, matched, left, self._prefill(worker, left))

    def decoder(self, worker: WorkerView, matched: int) -> Candidate:
        left = self.need.tokens - matched * worker.block_size
        return self._candidate(worker, matched, left, self._decode(worker, matched) + scorers.transfer_seconds(left))

    def unified(self, worker: WorkerView, matched: int) -> Candidate:
        left = self._to_compute(worker, matched)
        return self._candidate(worker, matched, left, self._decode(worker, matched) + self._prefill(worker, left))

    def seconds(self, prefiller: Candidate) -> float:
        """Until the prompt would be computed there, where nothing else is done: after the queue or, if it is the only
        prompt of its tenant, after one like it of each other tenant."""
        of = prefiller.worker, self.need.tokens, prefiller.to_compute, self.usual_rate
        queued = scorers.prefill_seconds(*of)
        return min(queued, self.need.turns * scorers.own_seconds(*of)) if self.need.turns else queued

    def seconds_beside(self, decoder: Candidate, tpot: float) -> float:
        """The same where it takes no more time of each step than `tpot` leaves beside the sequences there."""
        share = scorers.prompt_share(decoder.worker, tpot, self.usual_step)
        return self.seconds(decoder) / share if share else inf

    def late(self, separate: float, snapshot: FleetSnapshot, ttft: float) -> bool:
        """Whether its first token, or that of who is held behind it, comes after `ttft` if prefill workers compute it
        in `separate` seconds."""
        prefillers = [worker for worker in snapshot.workers if worker.prefills and worker.usable]
        rate = sum(worker.prefill_rate or self.usual_rate for worker in prefillers)
        return self.need.waited + separate + self.need.behind / rate > ttft

    def _to_compute(self, worker: WorkerView, matched: int) -> int:
        """Tokens that are left for it to compute when its turn comes."""
        if worker.name in self.predicted:
            matched = max(matched, filters.matched(worker, self.need, self.predicted))
        return self.need.tokens - matched * worker.block_size

    def _prefill(self, worker: WorkerView, left: int) -> float:
        return scorers.prefill_cost(worker, self.need.tokens, left, self.usual_rate, self.weights)

    def _decode(self, worker: WorkerView, matched: int) -> float:
        return scorers.decode_load(worker, self.need.tokens, matched, self.usual_step, self.weights)

    def _candidate(self, worker: WorkerView, matched: int, left: int, cost: float) -> Candidate:
        if self.need.adapter:
            _, digest = filters.lineage(worker, self.need)
            cost += scorers.adapter_cost(worker, digest, self.weights)
        cached = matched * worker.block_size
        return Candidate(worker, cached, self.need.tokens - cached, left, cost, scorers.rounded(cost))


def best(need: Need, candidates: list[Candidate]) -> Candidate:
    """The one of lowest cost; of equal ones that with the fewest sequences, then as a hash spreads requests."""
    lowest = min(candidate.rank for candidate in candidates)
    equal = [candidate for candidate in candidates if candidate.rank == lowest]
    if len(equal) == 1:
        return equal[0]
    request = crc32(need.id.encode())
    return min(equal, key=lambda c: (c.worker.in_flight, crc32(c.worker.name.encode(), request)))
