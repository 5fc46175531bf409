"""Runs the autoscaler: reads the signals, decides, and returns the writes for the reconcile loop.

Windows are only kept in memory. After a restart they begin with the current sizes, so that no pool shrinks too early.
"""

import datetime
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from legato_operator.api import conditions, quantities, roles
from legato_operator.api.conditions import Condition
from legato_operator.api.resources import Spec
from legato_operator.autoscaler import idle, outlook, record
from legato_operator.autoscaler.decide import DECIDE_EVERY, decide
from legato_operator.autoscaler.decision import REASONS, STATES, Decision, PoolDecision
from legato_operator.autoscaler.window import Window
from legato_operator.cluster import Ref, ref_of, seconds_of
from legato_operator.manifests import common, pool
from legato_operator.observing.gateway_signals import GatewaySignalSource
from legato_operator.observing.observed import Observed
from legato_operator.planning.actions import Apply, Phase
from legato_operator.planning.plan import Plan
from legato_operator.planning.pools import limits

REFRESH_EVERY = 30.0  # seconds between status writes if only numbers change: each write wakes watches
STALE_AFTER = 30.0  # seconds without a signal before the condition reports it: a starting worker has none yet
UNMET_AFTER = 30.0  # seconds of an unmet objective before the condition reports it: measured costs vary
MODES = ("Managed", "Advisory")
SCALED_DOWN, SCALED_UP = "ScaledDown", "ScaledUp"  # reasons of Events


class ScalingJournal(Protocol):
    """Records the autoscaler's actions."""

    def record_decision(self, service: Ref, decision: PoolDecision) -> None:
        """Records a decision about a pool."""

    def record_change(self, service: Ref, decision: PoolDecision) -> None:
        """Records a decision that changes a pool's size."""

    def forget_decisions(self, service: Ref) -> None:
        """Forgets a service that has ended or is no longer scaled."""


@dataclass(frozen=True)
class Scaled:
    """The result of one poll; empty without autoscaling, which clears `status.scaling`."""

    actions: tuple[Apply, ...] = ()
    status: Mapping[str, Any] | None = None  # `status.scaling`
    condition: Condition | None = None
    news: tuple[tuple[str, str], ...] = ()  # reason and note of Events
    due: float = float("inf")  # seconds until the next poll
    stable_for: float = 0.0  # seconds for which the next decisions are the same if no gateway's demand changes

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The writes of new sizes, which precede the plan."""
        return (Phase("scale", self.actions),) if self.actions else ()


@dataclass
class _Memory:
    """State of one service."""

    name: Ref
    windows: Mapping[str, Window] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  # by pool, after the last decision
    decided: float = float("-inf")  # time of the last decision
    known: float = float("-inf")  # time of the last decision for which all signals were known
    unmet: dict[str, float] = field(default_factory=dict)  # start times of unmet objectives
    scaled: Scaled = field(default_factory=Scaled)
    changes: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=record.MOST_RECORDS))


class Autoscaler:
    """The autoscaler of all services of a cluster."""

    def __init__(
        self, source: GatewaySignalSource, journal: ScalingJournal, gpu_resources: Sequence[str] = (quantities.GPU,)
    ) -> None:
        self._source = source
        self._gpu_resources = gpu_resources
        self._journal = journal
        self._services: dict[str, _Memory] = {}

    async def poll(self, observed: Observed) -> Scaled:
        """Decides if the service's mode is one of MODES and the last decision is old enough."""
        spec, current = observed.service.spec, observed.desired_replicas
        if observed.deleting or spec.scaling.mode not in MODES:
            self.forget(observed.uid)
            return Scaled()
        if not all(role in current for role in roles.with_pool(spec)):
            return Scaled(due=DECIDE_EVERY)
        memory = self._services.setdefault(observed.uid, _Memory(observed.service.ref, known=observed.now))
        left = memory.decided + DECIDE_EVERY - observed.now
        if 0 < left <= DECIDE_EVERY and not _is_woken(observed):
            return replace(memory.scaled, actions=(), news=(), due=left, stable_for=0.0)
        memory.scaled = await self._decide(observed, memory, current)
        return memory.scaled

    def forget(self, uid: str) -> None:
        """Forgets a service that has ended or is no longer scaled."""
        memory = self._services.pop(uid, None)
        self._source.forget(uid)
        if memory is not None:
            self._journal.forget_decisions(memory.name)

    async def _decide(self, observed: Observed, memory: _Memory, current: Mapping[str, int]) -> Scaled:
        """Decides now. A size set by somebody else restarts the pool's window, except for needs of a sample."""
        spec = observed.service.spec
        signals = await self._source.signals(observed)
        windows = {
            pool: window if memory.sizes.get(pool) == current[pool] else Window(sampled=window.sampled)
            for pool, window in memory.windows.items()
        }
        decision = decide(signals, windows, spec, current, observed.now)
        decision = _within_limits(decision, spec, self._gpu_resources)
        missing = [text for made in decision.pools.values() for text in made.missing]
        blind = bool(missing) and (signals.traffic is None or any(worker.ready for worker in signals.workers))
        memory.known = memory.known if blind else observed.now
        paused, managed = paused_until(observed), acts(observed)
        changed = [made for made in decision.pools.values() if made.changes] if managed else []
        memory.windows, memory.decided = decision.windows, observed.now
        memory.sizes = {pool: made.desired if managed else current[pool] for pool, made in decision.pools.items()}
        for made in decision.pools.values():
            self._journal.record_decision(memory.name, made)
        for made in changed:
            self._journal.record_change(memory.name, made)
        memory.changes.extend({"pool": made.pool, **record.entry(made, observed.timestamp)} for made in changed)
        unmet = sorted({objective for made in decision.pools.values() for objective in made.unmet})
        memory.unmet = {objective: memory.unmet.get(objective, observed.now) for objective in unmet}
        lasting = [objective for objective, since in memory.unmet.items() if observed.now - since >= UNMET_AFTER]
        stale = missing if observed.now - memory.known >= STALE_AFTER else []
        pending = paused or (blind and not stale) or len(lasting) < len(memory.unmet)
        return Scaled(
            actions=tuple(
                Apply(pool.scale(observed.service, made.pool, made.desired), manager=common.AUTOSCALER)
                for made in changed
            ),
            status=_status(observed, decision, memory.changes, paused),
            condition=_condition(observed, stale, paused, lasting),
            news=tuple(_event(made) for made in changed),
            due=DECIDE_EVERY,
            stable_for=0.0 if pending else idle.stable_for(signals, decision.windows, spec, observed.now),
        )


def _within_limits(decision: Decision, spec: Spec, gpu_resources: Sequence[str]) -> Decision:
    """Returns the decision with the sizes that all limits allow. Keeps the desired sizes, so that relaxed limits take
    effect immediately."""
    desired = {pool: made.desired for pool, made in decision.pools.items()}
    targets = limits.targets(spec, desired, gpu_resources)
    pools = {
        pool: outlook.limited(made, targets[pool].replicas, targets[pool].capped_by)
        for pool, made in decision.pools.items()
    }
    return replace(decision, pools=pools)


def acts(observed: Observed) -> bool:
    """True if decisions about a service are carried out."""
    return observed.service.spec.scaling.mode == "Managed" and not observed.deleting and not paused_until(observed)


def _is_woken(observed: Observed) -> bool:
    """True if a request is queued in a service at zero, which then need not wait for the next poll."""
    held = any(pod.report.queued_requests for pod in observed.pods if pod.report is not None)
    return held and observed.at_zero and acts(observed)


def paused_until(observed: Observed) -> str:
    """Returns the end of the autoscaler's pause, or an empty text without a valid pause."""
    text = observed.annotations.get(common.ANNOTATION_PAUSED, "")
    try:
        until = datetime.datetime.fromisoformat(text)
    except ValueError:
        return ""
    if until.tzinfo is None:
        until = until.replace(tzinfo=datetime.UTC)
    return text if until.timestamp() > observed.now else ""


def _event(made: PoolDecision) -> tuple[str, str]:
    """Returns an event's reason and note: the sizes, the reason and its number. The status has all terms."""
    needed = next((term.workers for term in made.terms if term.reason == made.reason), None)
    number = "" if needed is None else f" ({needed:.3g} needed)"
    why = REASONS.get(made.reason, made.reason).replace("`", "")
    event = SCALED_UP if made.desired > made.current else SCALED_DOWN
    return event, f"{made.pool} {made.current} → {made.desired}: {made.reason}, {why}{number}"


def _status(
    observed: Observed, decision: Decision, changes: Iterable[Mapping[str, Any]], paused: str
) -> Mapping[str, Any]:
    """Returns `status.scaling`. Entries stay for up to `REFRESH_EVERY` while only numbers, or the largest term, differ.

    A change whose status could not be written is included in a later one.
    """
    known = observed.status.get("scaling") or {}
    records, before = known.get("records", []), known.get("pools", {})
    pools = {name: record.entry(made, observed.timestamp) for name, made in decision.pools.items()}
    pools = {
        name: before[name] if _is_current(before.get(name), now, observed.now) else now for name, now in pools.items()
    }
    status = {"pools": pools, "records": record.append(records, [each for each in changes if each not in records])}
    return {**status, "pausedUntil": paused} if paused else status


def _is_current(before: Mapping[str, Any] | None, now: Mapping[str, Any], seconds: float) -> bool:
    if before is None:
        return False
    changed = {key for key in now.keys() | before.keys() if before.get(key) != now.get(key)}
    if changed & {"current", "recommended", "allowed", "cappedBy", "missing"}:
        return False
    if "reason" in changed and STATES & {before.get("reason"), now.get("reason")}:  # terms alternate as numbers do
        return False
    if not changed & {"needed", "highest", "reason", "terms", "unmet"}:
        return True
    return seconds - seconds_of(before["time"]) < REFRESH_EVERY


def _condition(observed: Observed, stale: Sequence[str], paused: str, unmet: Sequence[str]) -> Condition:
    """Returns the condition, without the varying numbers of `unmet` objectives: each new message costs a write."""
    kind = conditions.SCALING_ACTIVE
    why = f"even an idle worker misses {' and '.join(unmet)}: status.scaling.pools has the arithmetic" if unmet else ""
    if paused:
        return Condition(kind, False, conditions.PAUSED, f"until {paused}")
    if stale:
        return Condition(kind, False, conditions.METRICS_STALE, "; ".join(stale))
    if observed.service.spec.scaling.mode == "Advisory":
        return Condition(kind, False, conditions.ADVISORY, why)
    return Condition(kind, True, conditions.AUTOSCALING, why)


def with_new_sizes(observed: Observed, scaled: Scaled) -> Observed:
    """Returns the observation with the sizes written since, so that the plan of the same pass uses them.

    For example, a worker whose drain ends now is recalled and not deleted.
    """
    sizes = {ref_of(action.item): action.item["spec"] for action in scaled.actions}
    objects = tuple(
        {**item, "spec": {**item["spec"], **sizes[ref_of(item)]}} if ref_of(item) in sizes else item
        for item in observed.objects
    )
    return replace(observed, objects=objects)


def with_scaling(made: Plan, observed: Observed, scaled: Scaled) -> Plan:
    """Returns the plan with the status of scaling and the time of the next poll."""
    updated = [each for each in made.status["conditions"] if each["type"] != conditions.SCALING_ACTIVE]
    if scaled.condition is not None:
        known = conditions.known(observed.status)
        updated += conditions.update(known, [scaled.condition], observed.generation, observed.timestamp)
    status = {**made.status, "conditions": updated, "scaling": scaled.status}
    return Plan(made.phases, status, min(made.requeue_after, scaled.due))
