"""The routing decision. `choose(need, snapshot, matches, policy, predicted)` is a pure function.

Prefill and decode worker of a route have the same KV revision. In a *local* route, the decode worker computes the
prompt itself. Unified workers always do. A decode worker does so if a hand-off would cost more than it saves, or, if
the policy allows, if no prefill worker is available or none meets the objective for the first token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from legato_gateway.routing import filters, scorers
from legato_gateway.routing.candidates import Costs, WorkerCandidate, best
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.kv_sources import KVFetch, KVSources
from legato_gateway.routing.scorers import Objectives, Weights

WhenPrefillUnavailable = Literal["Local", "Wait", "Fail"]
KVSharing = Literal["Auto", "Off"]
PrefillAt = Literal["separate", "unified", "short", "recompute", "busy", "unavailable"]
"""The place of a prompt's computation: a prefill or unified worker, or a decode worker because the prompt is short, its
hand-off failed, or prefill workers are busy or unavailable."""

NOTHING: Matches = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Policy:
    """The manifest's `routing`. With `objectives`, decode workers prefill where prefill workers would miss them.

    With `kv_sharing` "Auto", workers fetch cached blocks from each other where that is faster than computing them.
    """

    local_prefill_below_tokens: int = 64
    when_prefill_unavailable: WhenPrefillUnavailable = "Local"
    weights: Weights = field(default_factory=Weights)
    objectives: Objectives | None = None
    kv_sharing: KVSharing = "Off"


@dataclass(frozen=True, slots=True)
class Route:
    """`prefill` is None if the decode worker prefills. `cached` has tokens by worker.

    `to_compute` are the tokens predicted to be left when the prefill starts.
    """

    prefill: str | None
    decode: str
    cached: Mapping[str, int]
    why: str
    to_compute: int
    prefill_at: PrefillAt = "separate"
    fetch: KVFetch | None = None  # by the worker that computes the prompt


@dataclass(frozen=True, slots=True)
class NoRoute:
    """No worker can take it now. `lasting`: waiting will not help, as long as the fleet stays as it is.

    `stale`: the fleet differs from its snapshot, and may have a route by now.
    """

    why: str
    lasting: bool
    stale: bool = False


def choose(
    need: Need, snapshot: FleetSnapshot, matches: Matches, policy: Policy, predicted: Matches = NOTHING
) -> Route | NoRoute:
    """Returns the route for `need` over the fleet as it is now.

    `matches` are cached blocks, by which room and short prompts are judged. `predicted` are blocks that workers will
    have cached soon; they only make their prefill cheaper.
    """
    rate = scorers.usual_rate(snapshot)
    sources = KVSources.of(need, snapshot, matches, rate) if policy.kv_sharing == "Auto" and matches else None
    costs = Costs(need, predicted, policy.weights, rate, scorers.usual_step(snapshot), sources)
    prefillers, split, unified = [], [], []
    for worker in snapshot.workers:
        matched = filters.matched(worker, need, matches)
        if filters.why_not(worker, need, matched) is not None:
            continue
        cached = costs.cached(worker, matched, matches)
        if worker.role == "prefill":
            prefillers.append(costs.prefiller(worker, cached))
        elif worker.role == "decode":
            split.append(costs.decoder(worker, cached))
        else:
            unified.append(costs.unified(worker, cached))
    if not split and not unified:
        return _no_decoder(need, snapshot, matches)
    if local := _cheap_local(need, split, policy):
        return local
    if pair := _best_pair(need, prefillers, split, unified):
        senders = _linked(need, prefillers, filters.partners(pair[0].worker, need)) if policy.objectives else []
        return _sooner_local(costs, snapshot, senders, split, policy) or _handoff(*pair)
    if unified:
        return _local(best(need, unified), "unified", "unified worker")
    return _without_prefill(costs, snapshot, split, policy)


def _cheap_local(need: Need, split: list[WorkerCandidate], policy: Policy) -> Route | None:
    """Returns the decode worker with the longest prefix if the rest of the prompt and its queue are short.

    Also if the prompt must not go to a prefill worker.
    """
    most = policy.local_prefill_below_tokens
    able = [c for c in split if need.local or (c.uncached < most and c.uncached + c.worker.backlog < most)]
    if not able:
        return None
    fewest = min(candidate.uncached for candidate in able)
    longest = best(need, [candidate for candidate in able if candidate.uncached == fewest])
    if need.local:
        return _local(longest, "recompute", f"{longest.uncached} tokens to recompute")
    return _local(longest, "short", f"only {longest.uncached} tokens to compute")


def _best_pair(
    need: Need, prefillers: list[WorkerCandidate], split: list[WorkerCandidate], unified: list[WorkerCandidate]
) -> tuple[WorkerCandidate, WorkerCandidate] | None:
    """Returns the cheapest pair of one lineage and network, unless a unified worker is cheaper."""
    cheapest: tuple[WorkerCandidate, WorkerCandidate] | None = None
    for partners in {filters.partners(candidate.worker, need) for candidate in prefillers}:
        senders, receivers = _linked(need, prefillers, partners), _linked(need, split, partners)
        if not senders or not receivers:
            continue
        pair = (best(need, senders), best(need, receivers))
        if cheapest is None or _pair_rank(pair) < _pair_rank(cheapest):
            cheapest = pair
    if cheapest is None or (unified and best(need, unified).cost < cheapest[0].cost + cheapest[1].cost):
        return None
    return cheapest


def _sooner_local(
    costs: Costs,
    snapshot: FleetSnapshot,
    prefillers: list[WorkerCandidate],
    split: list[WorkerCandidate],
    policy: Policy,
) -> Route | None:
    """Returns the decode worker that computes it soonest within `tpot`, if all prefill workers are busy and later.

    Both objectives are met that way where a queue would miss one. Dynamo's disaggregated router decides similarly, by a
    limit on the queue's length. A decode worker that shares the cores of prefill workers would only slow them down.
    """
    goal, split = policy.objectives, [candidate for candidate in split if not candidate.worker.shares_cores]
    if goal is None or not split or not all(candidate.worker.backlog for candidate in prefillers):
        return None
    separate = min(map(costs.seconds, prefillers))
    if not costs.late(separate, snapshot, goal.ttft):
        return None
    times = {candidate.worker.name: costs.seconds_alongside(candidate, goal.tpot) for candidate in split}
    soonest = min(split, key=lambda candidate: times[candidate.worker.name])
    local = times[soonest.worker.name]
    if local >= separate:
        return None
    return _local(soonest, "busy", f"{local:.2f} s, on prefill workers {separate:.2f} s")


def _linked(
    need: Need, candidates: list[WorkerCandidate], partners: tuple[tuple[str, str], str]
) -> list[WorkerCandidate]:
    """Returns candidates of a lineage and network that can hand off: a worker without a transport has no address."""
    return [c for c in candidates if filters.partners(c.worker, need) == partners and c.worker.address]


def _pair_rank(pair: tuple[WorkerCandidate, WorkerCandidate]) -> tuple[float, str]:
    return pair[0].cost + pair[1].cost, pair[0].worker.name


def _without_prefill(
    costs: Costs, snapshot: FleetSnapshot, split: list[WorkerCandidate], policy: Policy
) -> Route | NoRoute:
    """Applies the policy for missing prefill workers."""
    need = costs.need
    if policy.when_prefill_unavailable == "Local":
        unified = [costs.unified(each.worker, each.blocks) for each in split]
        return _local(best(need, unified), "unavailable", "no prefill worker available")
    reasons = _reasons(need, (worker for worker in snapshot.workers if worker.prefills), {})
    why = f"no prefill worker available ({reasons}), and the policy is {policy.when_prefill_unavailable}"
    return NoRoute(why, lasting=policy.when_prefill_unavailable == "Fail")


def _no_decoder(need: Need, snapshot: FleetSnapshot, matches: Matches) -> NoRoute:
    decoders = [worker for worker in snapshot.workers if worker.decodes]
    # An empty fleet may be about to start: that is worth waiting for.
    lasting = bool(decoders) and all(filters.never(worker, need) for worker in decoders)
    return NoRoute(f"no decode worker available ({_reasons(need, decoders, matches)})", lasting)


def _reasons(need: Need, workers: Iterable[WorkerView], matches: Matches) -> str:
    said = [
        f"{w.name}: {filters.why_not(w, need, filters.matched(w, need, matches)) or 'other KV revision'}"
        for w in workers
    ]
    return "; ".join(said) or "none exists"


def _local(chosen: WorkerCandidate, at: PrefillAt, reason: str) -> Route:
    worker = chosen.worker
    why = f"local: {reason}{_fetch_text(chosen)}; {_decode_text(chosen)}"
    return Route(None, worker.name, {worker.name: chosen.cached}, why, chosen.to_compute, at, chosen.fetch)


def _handoff(prefill: WorkerCandidate, decode: WorkerCandidate) -> Route:
    worker = prefill.worker
    text = (
        f"prefill {worker.name}: {_cached_text(prefill)}{_fetch_text(prefill)}, {prefill.to_compute} to compute, "
        f"{worker.backlog} queued, {prefill.cost:.2f} s; {_decode_text(decode)}"
    )
    cached = {worker.name: prefill.cached, decode.worker.name: decode.cached}
    return Route(worker.name, decode.worker.name, cached, text, prefill.to_compute, fetch=prefill.fetch)


def _fetch_text(chosen: WorkerCandidate) -> str:
    if (fetch := chosen.fetch) is None:
        return ""
    tokens = fetch.blocks * chosen.worker.block_size - chosen.cached
    return f", {tokens} fetched from {fetch.source} in {fetch.seconds:.2f} s"


def _decode_text(decode: WorkerCandidate) -> str:
    worker = decode.worker
    free = 100 * worker.room // max(1, worker.num_blocks)
    return f"decode {worker.name}: {_cached_text(decode)}, {free}% free, {worker.in_flight} in flight"


def _cached_text(candidate: WorkerCandidate) -> str:
    text, blocks = f"{candidate.cached} tokens cached", candidate.blocks
    restored = (blocks.count - blocks.arena) * candidate.worker.block_size
    return f"{text} ({restored} to restore in {blocks.seconds:.3f} s)" if restored else text
