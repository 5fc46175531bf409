"""The routing decision: `choose(need, snapshot, matches, policy)` is a pure function.

Prefill and decode worker of a route have the same KV revision. A route without a prefill worker is *local*: the
decode worker computes the prompt itself, as unified workers always do, and as a decode worker does when it holds so
long a prefix that a hand-off would cost more than it saves, or when no prefill worker is there and the policy allows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal
from zlib import crc32

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView

WhenPrefillUnavailable = Literal["Local", "Wait", "Fail"]


@dataclass(frozen=True, slots=True)
class Policy:
    """The manifest's `routing`."""

    local_prefill_below_tokens: int = 64
    when_prefill_unavailable: WhenPrefillUnavailable = "Local"


@dataclass(frozen=True, slots=True)
class Route:
    """`prefill` is None where the decode worker prefills. `cached` are tokens, by worker of the route."""

    prefill: str | None
    decode: str
    cached: Mapping[str, int]
    why: str


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
    cost: float
    rank: int  # the cost, as far as it counts


def choose(need: Need, snapshot: FleetSnapshot, matches: Matches, policy: Policy) -> Route | NoRoute:
    """The route for `need` over the fleet as it is now."""
    usual = scorers.usual_rate(snapshot)
    prefillers, split, unified = [], [], []
    for worker in snapshot.workers:
        matched = filters.matched(worker, need, matches)
        if filters.why_not(worker, need, matched) is not None:
            continue
        if worker.role == "prefill":
            prefillers.append(_prefiller(worker, need, matched, usual))
        elif worker.role == "decode":
            split.append(_decoder(worker, need, matched))
        else:
            unified.append(_unified(worker, need, matched, usual))
    if not split and not unified:
        return _no_decoder(need, snapshot, matches)
    if local := _cheap_local(need, split, policy):
        return local
    if pair := _best_pair(need, prefillers, split, unified):
        return pair
    if unified:
        return _local(_best(need, unified), "unified worker")
    return _without_prefill(need, snapshot, split, policy)


def _candidate(worker: WorkerView, need: Need, cached: int, cost: float) -> _Candidate:
    return _Candidate(worker, cached, need.tokens - cached, cost, scorers.rounded(cost))


def _prefiller(worker: WorkerView, need: Need, matched: int, usual: float) -> _Candidate:
    cached = matched * worker.block_size
    return _candidate(worker, need, cached, scorers.prefill_seconds(worker, need.tokens - cached, usual))


def _decoder(worker: WorkerView, need: Need, matched: int) -> _Candidate:
    cached = matched * worker.block_size
    load = scorers.decode_load(worker, worker.blocks_for(need.tokens) - matched)
    return _candidate(worker, need, cached, load + scorers.transfer_seconds(need.tokens - cached))


def _unified(worker: WorkerView, need: Need, matched: int, usual: float) -> _Candidate:
    cached = matched * worker.block_size
    load = scorers.decode_load(worker, worker.blocks_for(need.tokens) - matched)
    return _candidate(worker, need, cached, load + scorers.prefill_seconds(worker, need.tokens - cached, usual))


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
    few = [c for c in split if c.uncached + c.worker.backlog < policy.local_prefill_below_tokens]
    if not few:
        return None
    fewest = min(candidate.uncached for candidate in few)
    longest = _best(need, [candidate for candidate in few if candidate.uncached == fewest])
    return _local(longest, f"only {longest.uncached} tokens to compute")


def _best_pair(
    need: Need, prefillers: list[_Candidate], split: list[_Candidate], unified: list[_Candidate]
) -> Route | None:
    """The cheapest pair of one KV revision that reaches each other, unless a unified worker is cheaper still."""
    best: tuple[_Candidate, _Candidate] | None = None
    for revision in {candidate.worker.kv_revision for candidate in prefillers}:
        senders, receivers = _linked(prefillers, revision), _linked(split, revision)
        if not senders or not receivers:
            continue
        pair = (_best(need, senders), _best(need, receivers))
        if best is None or _pair_rank(pair) < _pair_rank(best):
            best = pair
    if best is None or (unified and _best(need, unified).cost < best[0].cost + best[1].cost):
        return None
    return _handoff(*best)


def _linked(candidates: list[_Candidate], revision: str) -> list[_Candidate]:
    """Those of a KV revision that can hand over at all: a worker without a transport tells no address."""
    return [c for c in candidates if c.worker.kv_revision == revision and c.worker.address]


def _pair_rank(pair: tuple[_Candidate, _Candidate]) -> tuple[float, str]:
    return pair[0].cost + pair[1].cost, pair[0].worker.name


def _without_prefill(need: Need, snapshot: FleetSnapshot, split: list[_Candidate], policy: Policy) -> Route | NoRoute:
    """No prefill worker can take it: the policy says what then."""
    if policy.when_prefill_unavailable == "Local":
        return _local(_best(need, split), "no prefill worker available")
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
    return Route(None, worker.name, {worker.name: chosen.cached}, f"local: {reason}; {_decode_text(chosen)}")


def _handoff(prefill: _Candidate, decode: _Candidate) -> Route:
    worker = prefill.worker
    text = (
        f"prefill {worker.name}: {prefill.cached} tokens cached, {prefill.uncached} to compute, "
        f"{worker.backlog} queued, {prefill.cost:.2f} s; {_decode_text(decode)}"
    )
    cached = {worker.name: prefill.cached, decode.worker.name: decode.cached}
    return Route(worker.name, decode.worker.name, cached, text)


def _decode_text(decode: _Candidate) -> str:
    worker = decode.worker
    free = 100 * worker.room // max(1, worker.num_blocks)
    return f"decode {worker.name}: {decode.cached} tokens cached, {free}% free, {worker.in_flight} in flight"
