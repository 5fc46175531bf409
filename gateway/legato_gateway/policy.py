"""The gateway's decisions: offer, place, start queued requests, choose a migration's target.

The relay and the simulator decide by these functions, each with its own requests and frames. Pure: time and fleet are
arguments. The simulator imports nothing else of the gateway.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Literal

from legato_gateway.admission.demand import Demand, LengthCounter
from legato_gateway.admission.limits import AdmissionLimits
from legato_gateway.admission.overload import HEADROOM
from legato_gateway.admission.queue import Admission
from legato_gateway.admission.ticket import LATE, Admit, Decision, Refuse, Ticket
from legato_gateway.routing import filters
from legato_gateway.routing.choose import NOTHING, NoRoute, Policy, Route, choose
from legato_gateway.routing.filters import Matches, Need
from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.routing.predicted_prefixes import PREDICTED_SECONDS, SETTLING_SECONDS, PredictedPrefixes
from legato_gateway.routing.rebalancing import TRIES, HotWorker, HotWorkers, RebalancingPolicy
from legato_gateway.routing.scorers import RUNNING_WEIGHT, Objectives, Weights, compute_seconds, usual_tokens
from legato_gateway.routing.tiers import most_cached
from legato_gateway.workers.fleet import Fleet

WhenLate = Literal["Queue", "Refuse"]

__all__ = [
    "PREDICTED_SECONDS",
    "RUNNING_WEIGHT",
    "SETTLING_SECONDS",
    "TRIES",
    "Admission",
    "AdmissionLimits",
    "Admit",
    "Decision",
    "Demand",
    "Fleet",
    "HotWorker",
    "HotWorkers",
    "KVIndex",
    "LengthCounter",
    "Matches",
    "Need",
    "NoRoute",
    "Objectives",
    "Policy",
    "PredictedPrefixes",
    "RebalancingPolicy",
    "Refuse",
    "Route",
    "Ticket",
    "Weights",
    "compute_seconds",
    "helped_objectives",
    "migration_target",
    "offer",
    "place",
    "prompt_work",
    "queued_decisions",
    "uncached_tokens",
]


def uncached_tokens(prompt: int, matches: Matches, snapshot: FleetSnapshot) -> int:
    """Returns the tokens of a prompt that no worker has cached in any tier. The last token is always computed.

    `matches` are the leading blocks that each worker has cached.
    """
    cached = max((most_cached(worker, matches) * worker.block_size for worker in snapshot.workers), default=0)
    return max(prompt - cached, 1)


def helped_objectives(slo: Objectives, when_late: WhenLate) -> Objectives:
    """Returns the objectives beyond which decode workers help: before requests are refused."""
    return replace(slo, ttft=HEADROOM * slo.ttft) if when_late == "Refuse" else slo


def prompt_work(prompt: int, uncached: int, snapshot: FleetSnapshot) -> int:
    """Returns the uncached tokens of a prompt, as tokens of usual prompts that take as long: a long one costs more."""
    computing = (worker for worker in snapshot.workers if worker.prefills or worker.role == "unified")
    cost = next((worker.prefill_cost for worker in computing if worker.prefill_cost is not None), None)
    return uncached if cost is None else usual_tokens(cost, prompt, uncached)


def offer(admission: Admission, demand: Demand, ticket: Ticket, snapshot: FleetSnapshot, now: float) -> Decision:
    """Admits, queues or refuses a new request.

    Counts it as an arrival unless it is refused. One that would be late counts, too: otherwise, pools would not grow.
    """
    decision = admission.offer(ticket, snapshot, now)
    demand.head(admission.obstacle, now)
    if not isinstance(decision, Refuse) or decision.reason == LATE:
        demand.arrivals.add(ticket.uncached)
    return decision


def queued_decisions(admission: Admission, snapshot: FleetSnapshot, now: float) -> Iterator[tuple[str, Decision]]:
    """Yields the ids of queued requests that end or start after the fleet changed.

    Refusals come first. The caller must cancel each in `admission` before it takes the next one.
    """
    yield from admission.outgrown(snapshot)
    for id in admission.next(snapshot, now):
        yield id, Admit()


def place(
    need: Need, snapshot: FleetSnapshot, matches: Matches, policy: Policy, predicted: Matches = NOTHING
) -> Route | NoRoute:
    """Returns the route for `need`. Workers that failed this request, or fail often, are the last resort; before them
    come workers of the other revision."""
    route = choose(need, snapshot, matches, policy, predicted)
    if isinstance(route, NoRoute) and need.new_revision is not None:
        need = replace(need, new_revision=None)
        route = choose(need, snapshot, matches, policy, predicted)
    if isinstance(route, NoRoute) and need.avoid:
        need = replace(need, avoid=frozenset())
        route = choose(need, snapshot, matches, policy, predicted)
    if isinstance(route, NoRoute) and any(worker.broken for worker in snapshot.workers):
        route = choose(need, filters.forgiven(snapshot, need), matches, policy, predicted)
    return route


def migration_target(
    need: Need, source: str, workers: Iterable[WorkerView], policy: Policy, hot: HotWorker | None
) -> str | None:
    """Returns the worker of `workers` that takes over a running sequence of `source`, or None.

    If the source is not draining but `hot`, the target must relieve it.
    """
    need = replace(need, avoid=frozenset({source}), local=True)
    able = [w for w in workers if w.decodes and (hot is None or hot.relieved_by(w, need.tokens))]
    needs = (need, replace(need, new_revision=None)) if need.new_revision is not None else (need,)
    routes = (choose(each, FleetSnapshot(tuple(able)), NOTHING, policy) for each in needs)
    return next((route.decode for route in routes if isinstance(route, Route)), None)
