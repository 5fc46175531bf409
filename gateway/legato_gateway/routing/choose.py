"""The routing decision: `choose(need, snapshot, matches, policy, predicted)` is a pure function.

Prefill and decode worker of a route have the same KV revision. A route without a prefill worker is *local*: the
decode worker computes the prompt itself, as unified workers always do, and as a decode worker does when it holds so
long a prefix that a hand-off would cost more than it saves, or when no prefill worker is there and the policy allows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal
from zlib import crc32

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.scorers import Weights

WhenPrefillUnavailable = Literal["Local", "Wait", "Fail"]


NOTHING: Matches = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Policy:
    """The manifest's `routing`."""

    local_prefill_below_tokens: int = 64
    when_prefill_unavailable: WhenPrefillUnavailable = "Local"
    weights: Weights = field(default_factory=Weights)


@dataclass(frozen=True, slots=True)
class Route:
    """`prefill` is None where the decode worker prefills. `cached` are tokens, by worker of the route; `to_compute`
    those that will be left, as far as can be predicted, when its prefill begins."""

    prefill: str | None
    decode: str
    cached: Mapping[str, int]
    why: str
    to_compute: int


@dataclass(frozen=True, slots=True)
class NoRoute:
    """Nobody can take it now. `lasting`: and waiting will not help, as far as this fleet goes.

    `stale`: the fleet was not what it was taken for, and may have another route already.
    """

    why: str
    lasting: bool
    stale: bool = False


@dataclass(slots=True)
class _Candidate:
    """A worker that could take its part, and what that costs; `_best` compares them."""

    worker: WorkerView
    cached: int
    uncached: int
    to_compute: int  # of the uncached: some of them others before it are predicted to compute
    cost: float
    rank: int  # the cost, as far as it counts


def choose(
    need: Need, snapshot: FleetSnapshot, matches: Matches, policy: Policy, predicted: Matches = NOTHING
) -> Route | NoRoute:
    """The route for `need` over the fleet as it is now. `matches` is the truth, by which room and short prompts are
    judged; `predicted` are blocks that workers will hold soon, which only makes their prefill cheaper."""
    costs = _Costs(need, predicted, policy.weights, scorers.usual_rate(snapshot), scorers.usual_step(snapshot))
    prefillers, split, unified = [], [], []
    for worker in snapshot.workers:
        matched = filters.matched(worker, need, matches)
        if filters.why_not(worker, need, matched) is not None:
            continue
        if worker.role == "prefill":
            prefillers.append(costs.prefiller(worker, matched))
        elif worker.role == "decode":
            split.append(costs.decoder(worker, matched))
        else:
            unified.append(costs.unified(worker, matched))
    if not split and not unified:
        return _no_decoder(need, snapshot, matches)
    if local := _cheap_local(need, split, policy):
        return local
    if pair := _best_pair(need, prefillers, split, unified):
        return pair
    if unified:
        return _local(_best(need, unified), "unified worker")
    return _without_prefill(costs, snapshot, split, policy)


@dataclass(frozen=True, slots=True)
class _Costs:
    """Makes candidates of the workers that could take `need`, which hold `matched` blocks of it."""

    need: Need
    predicted: Matches
    weights: Weights
    usual_rate: float
    usual_step: float

    def prefiller(self, worker: WorkerView, matched: int) -> _Candidate:
        left = self._to_compute(worker, matched)
        return self._candidate(worker, matched, left, self._prefill(worker, left))

    def decoder(self, worker: WorkerView, matched: int) -> _Candidate:
        left = self.need.tokens - matched * worker.block_size
        return self._candidate(worker, matched, left, self._decode(worker, matched) + scorers.transfer_seconds(left))

    def unified(self, worker: WorkerView, matched: int) -> _Candidate:
        left = self._to_compute(worker, matched)
        return self._candidate(worker, matched, left, self._decode(worker, matched) + self._prefill(worker, left))

    def _to_compute(self, worker: WorkerView, matched: int) -> int:
        """Tokens that are left for it to compute when its turn comes."""
        if worker.name in self.predicted:
            matched = max(matched, filters.matched(worker, self.need, self.predicted))
        return self.need.tokens - matched * worker.block_size

    def _prefill(self, worker: WorkerView, left: int) -> float:
        return scorers.prefill_cost(worker, self.need.tokens, left, self.usual_rate, self.weights)

    def _decode(self, worker: WorkerView, matched: int) -> float:
        return scorers.decode_load(worker, self.need.tokens, matched, self.usual_step, self.weights)

    def _candidate(self, worker: WorkerView, matched: int, left: int, cost: float) -> _Candidate:
        if self.need.adapter:
            _, digest = filters.lineage(worker, self.need)
            cost += scorers.adapter_cost(worker, digest, self.weights)
        cached = matched * worker.block_size
        return _Candidate(worker, cached, self.need.tokens - cached, left, cost, scorers.rounded(cost))


def _best(need: Need, candidates: list[_Candidate]) -> _Candidate:
    """The one of lowest cost; of equal ones that with the fewest sequences, then as a hash spreads requests."""
    lowest = min(candidate.rank for candidate in candidates)
    equal = [candidate for candidate in candidates if candidate.rank == lowest]
    if len(equal) == 1:
        return equal[0]
    request = crc32(need.id.encode())
    return min(equal, key=lambda c: (c.worker.in_flight, crc32(c.worker.name.encode(), request)))


def _cheap_local(need: Need, split: list[_Candidate], policy: Policy) -> Route | None:
    """The decode worker with the longest prefix, if what is left for it to compute, queue included, is little."""
    most = policy.local_prefill_below_tokens
    few = [c for c in split if c.uncached < most and c.uncached + c.worker.backlog < most]
    if not few:
        return None
    fewest = min(candidate.uncached for candidate in few)
    longest = _best(need, [candidate for candidate in few if candidate.uncached == fewest])
    return _local(longest, f"only {longest.uncached} tokens to compute")


def _best_pair(
    need: Need, prefillers: list[_Candidate], split: list[_Candidate], unified: list[_Candidate]
) -> Route | None:
    """The cheapest pair of one lineage and network, unless a unified worker is cheaper still."""
    best: tuple[_Candidate, _Candidate] | None = None
    for partners in {filters.partners(candidate.worker, need) for candidate in prefillers}:
        senders, receivers = _linked(need, prefillers, partners), _linked(need, split, partners)
        if not senders or not receivers:
            continue
        pair = (_best(need, senders), _best(need, receivers))
        if best is None or _pair_rank(pair) < _pair_rank(best):
            best = pair
    if best is None or (unified and _best(need, unified).cost < best[0].cost + best[1].cost):
        return None
    return _handoff(*best)


def _linked(need: Need, candidates: list[_Candidate], partners: tuple[tuple[str, str], str]) -> list[_Candidate]:
    """Those of a lineage and network that can hand over at all: a worker without a transport tells no address."""
    return [c for c in candidates if filters.partners(c.worker, need) == partners and c.worker.address]


def _pair_rank(pair: tuple[_Candidate, _Candidate]) -> tuple[float, str]:
    return pair[0].cost + pair[1].cost, pair[0].worker.name


def _without_prefill(
    costs: "_Costs", snapshot: FleetSnapshot, split: list[_Candidate], policy: Policy
) -> Route | NoRoute:
    """No prefill worker can take it: the policy says what then."""
    need = costs.need
    if policy.when_prefill_unavailable == "Local":
        unified = [costs.unified(each.worker, each.cached // each.worker.block_size) for each in split]
        return _local(_best(need, unified), "no prefill worker available")
    reasons = _reasons(need, (worker for worker in snapshot.workers if worker.prefills), {})
    why = f"no prefill worker available ({reasons}), and the policy is {policy.when_prefill_unavailable}"
    return NoRoute(why, lasting=policy.when_prefill_unavailable == "Fail")


def _no_decoder(need: Need, snapshot: FleetSnapshot, matches: Matches) -> NoRoute:
    decoders = [worker for worker in snapshot.workers if worker.decodes]
    # A fleet that is empty now may be about to start: that is worth waiting for.
    lasting = bool(decoders) and all(filters.never(worker, need) for worker in decoders)
    return NoRoute(f"no decode worker available ({_reasons(need, decoders, matches)})", lasting)


def _reasons(need: Need, workers: Iterable[WorkerView], matches: Matches) -> str:
    said = [
        f"{w.name}: {filters.why_not(w, need, filters.matched(w, need, matches)) or 'other KV revision'}"
        for w in workers
    ]
    return "; ".join(said) or "there is none"


def _local(chosen: _Candidate, reason: str) -> Route:
    worker = chosen.worker
    why = f"local: {reason}; {_decode_text(chosen)}"
    return Route(None, worker.name, {worker.name: chosen.cached}, why, chosen.to_compute)


def _handoff(prefill: _Candidate, decode: _Candidate) -> Route:
    worker = prefill.worker
    text = (
        f"prefill {worker.name}: {prefill.cached} tokens cached, {prefill.to_compute} to compute, "
        f"{worker.backlog} queued, {prefill.cost:.2f} s; {_decode_text(decode)}"
    )
    cached = {worker.name: prefill.cached, decode.worker.name: decode.cached}
    return Route(worker.name, decode.worker.name, cached, text, prefill.to_compute)


def _decode_text(decode: _Candidate) -> str:
    worker = decode.worker
    free = 100 * worker.room // max(1, worker.num_blocks)
    return f"decode {worker.name}: {decode.cached} tokens cached, {free}% free, {worker.in_flight} in flight"
