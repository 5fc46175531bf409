"""The autoscaler at work: asks for the signals, decides, and says what to write. The reconcile loop writes it.

Windows are kept in memory alone: after a restart they begin with the present sizes, so nothing shrinks too soon.
"""

import datetime
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from legato_operator.api import conditions, quantities, roles
from legato_operator.api.conditions import Condition
from legato_operator.api.resources import Spec
from legato_operator.autoscaler import outlook, record
from legato_operator.autoscaler.decide import DECIDE_EVERY, decide
from legato_operator.autoscaler.decision import REASONS, Decision, PoolDecision
from legato_operator.autoscaler.window import Window
from legato_operator.cluster import Ref, ref_of
from legato_operator.manifests import common, pool
from legato_operator.observing.observed import Observed
from legato_operator.observing.signal_source import SignalSource
from legato_operator.planning import limits
from legato_operator.planning.actions import Apply, Phase
from legato_operator.planning.plan import Plan
from legato_protocol import names

REFRESH_EVERY = 30.0  # seconds, in the status: numbers alone change with every look, and each write wakes watches
STALE_AFTER = 30.0  # seconds without a signal before the condition says so: a worker that starts has none yet
UNMET_AFTER = 30.0  # seconds in which an objective cannot be met, before the condition says so: measured costs vary
MODES = ("Managed", "Advisory")
SCALED_DOWN, SCALED_UP = "ScaledDown", "ScaledUp"  # reasons of Events


class ScalingJournal(Protocol):
    """Who counts what the autoscaler does."""

    def wished(self, service: Ref, decision: PoolDecision) -> None:
        """It has decided about a pool."""

    def changed(self, service: Ref, decision: PoolDecision) -> None:
        """And gives it another size."""

    def forgot(self, service: Ref) -> None:
        """A service has ended, or is not scaled any more."""


class NullScalingJournal:
    """Counts nothing."""

    def wished(self, service: Ref, decision: PoolDecision) -> None:
        return

    def changed(self, service: Ref, decision: PoolDecision) -> None:
        return

    def forgot(self, service: Ref) -> None:
        return


@dataclass(frozen=True)
class Scaled:
    """What one look leaves to do. Empty where nobody scales: then the status loses what it told."""

    actions: tuple[Apply, ...] = ()
    status: Mapping[str, Any] | None = None  # `status.scaling`
    condition: Condition | None = None
    news: tuple[tuple[str, str], ...] = ()  # reason and note of Events
    due: float = float("inf")  # seconds until the next look

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The sizes to write, before anything is planned."""
        return (Phase("scale", self.actions),) if self.actions else ()


@dataclass
class _Memory:
    """Of one service."""

    name: Ref
    windows: Mapping[str, Window] = field(default_factory=dict)
    wished: dict[str, int] = field(default_factory=dict)
    decided: float = float("-inf")
    known: float = float("-inf")  # when nothing was missing last
    unmet: dict[str, float] = field(default_factory=dict)  # objectives that no worker meets, and since when
    scaled: Scaled = field(default_factory=Scaled)
    changes: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=record.MOST_RECORDS))


class Autoscaler:
    """Of all services of a cluster."""

    def __init__(
        self,
        source: SignalSource,
        journal: ScalingJournal | None = None,
        gpu_resources: Sequence[str] = (quantities.GPU,),
    ) -> None:
        self._source = source
        self._gpu_resources = gpu_resources
        self._journal = journal or NullScalingJournal()
        self._services: dict[str, _Memory] = {}

    async def look(self, observed: Observed) -> Scaled:
        """Decide, if it is time and the service's mode asks for it."""
        spec, current = observed.service.spec, observed.desired_replicas
        metadata = observed.service.metadata
        if observed.deleting or spec.scaling.mode not in MODES:
            self.forget(observed.uid)
            return Scaled()
        if not all(role in current for role in roles.with_pool(spec)):
            return Scaled(due=DECIDE_EVERY)
        name = Ref(names.INFERENCE_SERVICE, metadata.namespace, metadata.name)
        memory = self._services.setdefault(observed.uid, _Memory(name, known=observed.now))
        left = memory.decided + DECIDE_EVERY - observed.now
        if 0 < left <= DECIDE_EVERY and not _is_woken(observed):
            return replace(memory.scaled, actions=(), news=(), due=left)
        memory.scaled = await self._decide(observed, memory, current)
        return memory.scaled

    def forget(self, uid: str) -> None:
        """A service has ended, or is not scaled any more."""
        memory = self._services.pop(uid, None)
        self._source.forget(uid)
        if memory is not None:
            self._journal.forgot(memory.name)

    async def _decide(self, observed: Observed, memory: _Memory, current: Mapping[str, int]) -> Scaled:
        """A size that somebody else has set begins the window anew, as a restart does."""
        signals = await self._source.signals(observed)
        windows = {pool: window for pool, window in memory.windows.items() if memory.wished.get(pool) == current[pool]}
        decision = decide(signals, windows, observed.service.spec, current, observed.now)
        decision = _within_limits(decision, observed.service.spec, self._gpu_resources)
        missing = [text for made in decision.pools.values() for text in made.missing]
        blind = bool(missing) and (signals.traffic is None or any(worker.ready for worker in signals.workers))
        memory.known = memory.known if blind else observed.now
        paused, managed = paused_until(observed), acts(observed)
        changed = [made for made in decision.pools.values() if made.changes] if managed else []
        memory.windows, memory.decided = decision.windows, observed.now
        memory.wished = {pool: made.desired if managed else current[pool] for pool, made in decision.pools.items()}
        for made in decision.pools.values():
            self._journal.wished(memory.name, made)
        for made in changed:
            self._journal.changed(memory.name, made)
        memory.changes.extend({"pool": made.pool, **record.entry(made, observed.timestamp)} for made in changed)
        unmet = sorted({objective for made in decision.pools.values() for objective in made.unmet})
        memory.unmet = {objective: memory.unmet.get(objective, observed.now) for objective in unmet}
        lasting = [objective for objective, since in memory.unmet.items() if observed.now - since >= UNMET_AFTER]
        stale = missing if observed.now - memory.known >= STALE_AFTER else []
        return Scaled(
            actions=tuple(_action(observed, made) for made in changed),
            status=_status(observed, decision, memory.changes, paused),
            condition=_condition(observed, stale, paused, lasting),
            news=tuple(_event(made) for made in changed),
            due=DECIDE_EVERY,
        )


def _within_limits(decision: Decision, spec: Spec, gpu_resources: Sequence[str]) -> Decision:
    """Wishes stay as they are: with a larger budget, or another ratio, they are followed at once."""
    wishes = {pool: made.desired for pool, made in decision.pools.items()}
    targets = limits.targets(spec, wishes, gpu_resources)
    pools = {
        pool: outlook.limited(made, targets[pool].replicas, targets[pool].capped_by)
        for pool, made in decision.pools.items()
    }
    return replace(decision, pools=pools)


def acts(observed: Observed) -> bool:
    """Whether what is decided for a service is done."""
    return observed.service.spec.scaling.mode == "Managed" and not observed.deleting and not paused_until(observed)


def _is_woken(observed: Observed) -> bool:
    """At zero the first request has nobody else to wait for: it does not wait for the next look, too."""
    held = any(pod.report.held_requests for pod in observed.pods if pod.report is not None)
    return held and observed.at_zero and acts(observed)


def paused_until(observed: Observed) -> str:
    """The time until which the autoscaler is paused; empty where it is not. What is no time is no pause."""
    text = observed.annotations.get(common.ANNOTATION_PAUSED, "")
    try:
        until = datetime.datetime.fromisoformat(text)
    except ValueError:
        return ""
    if until.tzinfo is None:
        until = until.replace(tzinfo=datetime.UTC)
    return text if until.timestamp() > observed.now else ""


def _action(observed: Observed, made: PoolDecision) -> Apply:
    return Apply(pool.scale(observed.service, made.pool, made.desired), manager=common.AUTOSCALER)


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
    """What is told already stays as long as only numbers differ, up to `REFRESH_EVERY`.

    A change whose status could not be written stands in a later one.
    """
    known = observed.status.get("scaling") or {}
    records, told = known.get("records", []), known.get("pools", {})
    pools = {name: record.entry(made, observed.timestamp) for name, made in decision.pools.items()}
    pools = {name: told[name] if _is_told(told.get(name), now, observed.now) else now for name, now in pools.items()}
    status = {"pools": pools, "records": record.append(records, [each for each in changes if each not in records])}
    return {**status, "pausedUntil": paused} if paused else status


def _is_told(told: Mapping[str, Any] | None, now: Mapping[str, Any], seconds: float) -> bool:
    if told is None or any(
        told.get(key) != now.get(key) for key in ("current", "wish", "allowed", "cappedBy", "missing")
    ):
        return False
    if all(told.get(key) == now.get(key) for key in ("needed", "highest", "reason", "terms", "unmet")):
        return True  # at rest nothing is written
    return seconds - datetime.datetime.fromisoformat(told["time"]).timestamp() < REFRESH_EVERY


def _condition(observed: Observed, stale: Sequence[str], paused: str, unmet: Sequence[str]) -> Condition:
    """Of `unmet` objectives without numbers, which vary: each message that differs is a write."""
    kind = conditions.SCALING_ACTIVE
    why = f"even an idle worker misses {' and '.join(unmet)}: status.scaling.pools has the arithmetic" if unmet else ""
    if paused:
        return Condition(kind, False, conditions.PAUSED, f"until {paused}")
    if stale:
        return Condition(kind, False, conditions.METRICS_STALE, "; ".join(stale))
    if observed.service.spec.scaling.mode == "Advisory":
        return Condition(kind, False, conditions.ADVISORY, why)
    return Condition(kind, True, conditions.AUTOSCALING, why)


def with_wishes(observed: Observed, scaled: Scaled) -> Observed:
    """What was observed, with the sizes that were written since: the plan of the same pass acts on them.

    So a worker whose drain ends now is recalled, and not deleted.
    """
    sizes = {ref_of(action.item): action.item["spec"] for action in scaled.actions}
    objects = tuple(
        {**item, "spec": {**item["spec"], **sizes[ref_of(item)]}} if ref_of(item) in sizes else item
        for item in observed.objects
    )
    return replace(observed, objects=objects)


def with_scaling(made: Plan, observed: Observed, scaled: Scaled) -> Plan:
    """A plan that also tells of scaling, and comes back for the next look."""
    told = [each for each in made.status["conditions"] if each["type"] != conditions.SCALING_ACTIVE]
    if scaled.condition is not None:
        known = conditions.known(observed.status)
        told += conditions.update(known, [scaled.condition], observed.generation, observed.timestamp)
    status = {**made.status, "conditions": told, "scaling": scaled.status}
    return Plan(made.phases, status, min(made.requeue_after, scaled.due))
