"""The reconcile loop of one service: observe, plan, apply, patch the status, and schedule the next pass."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from legato_operator.acceptance import accept
from legato_operator.api import conditions, parsing
from legato_operator.api.conditions import Condition
from legato_operator.api.resources import Drain
from legato_operator.apply import Writers, apply, hold, is_held, release
from legato_operator.autoscaling import Autoscaler, Scaled, acts, with_new_sizes, with_scaling
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, Ref, is_leaving, seconds_of, uid_of
from legato_operator.errors import ClusterError, Conflict, ManifestError, NotLeading, ObjectNotFound, Unavailable
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observe import Gateways, Observer, Workers, find, find_pods
from legato_operator.observing.observed import Accepted, Observed, Pod
from legato_operator.observing.route_hosts import NullRouteHosts, RouteHosts
from legato_operator.planning import status, token_rotation
from legato_operator.planning.actions import Phase, SetToken
from legato_operator.planning.plan import plan
from legato_operator.planning.rollout import waves
from legato_operator.planning.rollout.upgrades import UPGRADE_SLOT
from legato_operator.recorder import Recorder, record_changes
from legato_operator.upgrading import NullUpgradeScheduler, UpgradeScheduler
from legato_operator.waking import DemandWaker

_END_SLACK = 10.0  # seconds beyond the drain deadline and LAST_WORDS after which a service is released with its pods
_MOST_TEXT = 1000  # characters of an error in a condition
NOTICED_WITHIN = 4.0  # seconds from a change of demand to the poll for which a gateway was waited for


class StatusJournal(Protocol):
    """Records the state of services."""

    def observe(self, service: Ref, observed: Observed) -> None:
        """Records an observation."""

    def record_status(self, service: Ref, status: Mapping[str, Any]) -> None:
        """Records fields of the status."""

    def remove(self, service: Ref) -> None:
        """Forgets a deleted service."""


@dataclass(frozen=True)
class _Settled:
    """A service whose last pass had nothing to do. Only its gateways are polled until the next pass is due."""

    observed: Observed  # by the pass
    scaled: Scaled  # by the last poll
    idle: bool  # since the last poll, its gateways are waited for
    until: float  # time of the next pass
    idle_until: float  # the same while it is idle

    def left(self, now: float) -> float:
        """Returns the seconds until the next pass."""
        return (self.idle_until if self.idle else self.until) - now

    def due(self, now: float) -> float:
        """Returns the seconds until the next poll or pass."""
        poll = max(self.scaled.due, self.scaled.stable_for) if self.idle else self.scaled.due
        return max(0.0, min(self.left(now), poll))


@dataclass(frozen=True)
class Collaborators:
    """Parts that a reconciler calls besides the cluster and its workers. Only clusters have routes and upgrades."""

    recorder: Recorder
    journal: StatusJournal
    gateways: Gateways
    autoscaler: Autoscaler
    waker: DemandWaker
    hosts: RouteHosts | NullRouteHosts = field(default_factory=NullRouteHosts)
    upgrades: UpgradeScheduler | NullUpgradeScheduler = field(default_factory=NullUpgradeScheduler)


class Reconciler:
    """Brings services closer to their specs. Remembers settled services."""

    def __init__(
        self, cluster: Cluster, workers: Workers, clock: Clock, placement: PodPlacement, collaborators: Collaborators
    ) -> None:
        self._cluster = cluster
        self._writers = Writers(cluster, workers, collaborators.gateways)
        self._clock = clock
        self._placement = placement
        self._observer = Observer(cluster, workers, clock, collaborators.gateways, collaborators.hosts)
        self._recorder = collaborators.recorder
        self._journal = collaborators.journal
        self._autoscaler = collaborators.autoscaler
        self._upgrades = collaborators.upgrades
        self._waker = collaborators.waker
        self._settled: dict[Ref, _Settled] = {}

    async def reconcile(self, ref: Ref, woken: bool = True) -> float | None:
        """Runs one pass, or only polls the gateways of a settled service that was not `woken`.

        Returns the seconds until the next one is due at the latest, or None if the service is gone. Raises a
        ClusterError that another pass does not mend, after everything else was done.
        """
        settled, scaled = self._settled.pop(ref, None), None
        if settled is not None and not woken and self._is_current(settled):
            polled = await self._poll(ref, settled)
            if polled is not None and _is_quiet(settled.scaled, polled.scaled) and self._is_current(polled):
                self._settled[ref] = polled
                return polled.due(self._clock.now())
            scaled = polled.scaled if polled is not None else None
        stored = await self._find(ref)
        if stored is None:
            return None
        try:
            return await self._pass(ref, stored, scaled)
        except Conflict:
            return self._placement.requeue_after
        except ObjectNotFound:
            if await self._find(ref) is None:
                return None
            raise

    async def record_failure(self, ref: Ref, error: Exception) -> None:
        """Writes the error of a failed pass into the service's status, if possible."""
        reason = conditions.API_REFUSED if isinstance(error, ClusterError) else conditions.OPERATOR_FAULT
        text = str(error) if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"
        try:
            stored = await self._find(ref)
            if stored is not None:
                await self._write_stalled(ref, stored, reason, text)
        except ClusterError:
            return  # the error is logged and counted, and the next pass reports it again

    async def _find(self, ref: Ref) -> Object | None:
        stored = await find(self._cluster, ref)
        if stored is None:
            self._journal.remove(ref)
            self._waker.forget(ref)
            self._observer.forget(ref)
        return stored

    def _is_current(self, settled: _Settled) -> bool:
        """True until the next pass is due or the clock is set back."""
        now = self._clock.now()
        return settled.observed.now <= now and settled.left(now) > 0

    async def _poll(self, ref: Ref, settled: _Settled) -> _Settled | None:
        """Returns the service with the autoscaler's decision from what gateways report now.

        None if a gateway lost a worker, or reports other state than the last pass saw: a pass finds out why.
        """
        observed = await self._observer.refresh(settled.observed)
        changed = _gateway_states(observed.pods) != _gateway_states(settled.observed.pods)
        if changed or any(pod.unreached for pod in observed.pods):
            return None
        if settled.idle:
            observed = replace(observed, unchanged_until=observed.now - NOTICED_WITHIN)
        scaled = await self._autoscaler.poll(observed)
        return replace(settled, scaled=scaled, idle=self._follow(ref, observed, scaled))

    def _follow(self, ref: Ref, observed: Observed, scaled: Scaled) -> bool:
        """Waits for the gateways of an idle service, and of one at zero. Returns True if that replaces polls."""
        return self._waker.follow(ref, observed, scaled.stable_for > 0)

    async def _pass(self, ref: Ref, stored: Object, scaled: Scaled | None) -> float:
        if is_leaving(stored):
            if self._is_overdue(stored):
                await release(self._cluster, ref)
                return self._placement.requeue_after
        elif not is_held(stored):
            await hold(self._cluster, ref, uid_of(stored))
        accepted = await accept(self._cluster, stored, self._placement)
        if isinstance(accepted, Accepted):
            return await self._move(ref, stored, accepted, scaled)
        if is_leaving(stored):
            return await self._end_unread(ref, uid_of(stored))
        pods = await find_pods(self._cluster, ref, uid_of(stored), self._clock.now())
        refused = status.refused_status(pods, stored.get("status", {}), accepted, self._clock.timestamp())
        await self._write_status(ref, stored, refused)
        return self._placement.resync_after

    async def _move(self, ref: Ref, stored: Object, accepted: Accepted, scaled: Scaled | None) -> float:
        """Takes one step towards the spec. A refusal by the API server does not keep the rest from being done.

        `scaled` is the autoscaler's decision, if a poll has just made one. Its sizes are dropped if the autoscaler has
        been paused since, or no longer scales the service.
        """
        observed = await self._observer.observe(stored, accepted, self._upgrades.stopped_by)
        self._journal.observe(ref, observed)
        if scaled is None or (scaled.actions and not acts(observed)):
            scaled = await self._autoscaler.poll(observed)
        unscaled = await self._try(observed, scaled.phases)
        current = observed if unscaled is not None else with_new_sizes(observed, scaled)
        idle = self._follow(ref, current, scaled)
        planned = plan(current, self._placement)
        made = with_scaling(planned, observed, scaled)
        refusal = await self._try(current, made.phases) or unscaled
        if refusal is not None:
            stuck = self._stalled(stored, conditions.API_REFUSED, str(refusal))
            by_type = {condition["type"]: condition for condition in (*made.status["conditions"], *stuck)}
            await self._write_status(ref, stored, {**made.status, "conditions": list(by_type.values())})
            raise refusal
        wrote = await self._write_status(ref, stored, made.status)
        for reason, note in scaled.news:
            await self._recorder.record(stored, False, reason, note)
        await self._record_token_events(stored, made.phases)
        again = min(planned.requeue_after, await self._next_wave(made.status, observed.status))
        rests = again >= self._placement.resync_after and not (wrote or made.phases or scaled.actions)
        if not rests or scaled.due >= again:
            return min(again, scaled.due)
        unwatched = is_unwatched(observed, made.status)
        longest = again if unwatched else self._placement.idle_resync_after * random.uniform(0.5, 1.0)
        until, idle_until = observed.now + again, observed.now + max(again, longest)
        self._settled[ref] = _Settled(observed, scaled, idle, until, idle_until)
        return self._settled[ref].due(self._clock.now())

    async def _next_wave(self, new: Mapping[str, Any], before: Mapping[str, Any]) -> float:
        """Returns the seconds until a service with these statuses may begin or end its upgrade."""
        if not waves.concerns(new, before):
            return float("inf")
        again = await self._upgrades.poll()
        return self._upgrades.every if before.get(UPGRADE_SLOT) else again

    async def _record_token_events(self, stored: Object, phases: tuple[Phase, ...]) -> None:
        for action in (action for phase in phases for action in phase.actions):
            if isinstance(action, SetToken) and action.reason:
                warning = action.reason in token_rotation.WARNINGS
                await self._recorder.record(stored, warning, action.reason, action.note)

    async def _try(self, observed: Observed, phases: tuple[Phase, ...]) -> ClusterError | None:
        """Executes the phases. Returns a permanent refusal, or None. Raises errors that another pass may fix."""
        try:
            await apply(self._writers, observed, phases)
        except (Conflict, NotLeading, Unavailable):
            raise
        except ClusterError as refusal:
            return refusal
        return None

    async def _end_unread(self, ref: Ref, uid: str) -> float:
        """Ends a service whose manifest cannot be read: its pods first, in no order, which would need the manifest."""
        pods = await find_pods(self._cluster, ref, uid, self._clock.now())
        for pod in pods:
            if not pod.leaving:
                await self._cluster.delete(Ref("Pod", ref.namespace, pod.name), pod.uid)
        if not pods:
            await release(self._cluster, ref)
        return self._placement.requeue_after

    def _is_overdue(self, stored: Object) -> bool:
        """True if the service's pods had time to end: a lost node must not delay a namespace's deletion.

        Compares the API server's clock with this machine's; the slack covers their difference.
        """
        try:
            deadline = parsing.service_from_object(stored).spec.drain.deadline
        except ManifestError:
            deadline = Drain().deadline
        since = seconds_of(stored["metadata"]["deletionTimestamp"])
        return self._clock.now() - since > deadline + common.LAST_WORDS + _END_SLACK

    async def _write_stalled(self, ref: Ref, stored: Object, reason: str, text: str) -> None:
        by_type = {condition["type"]: condition for condition in conditions.known(stored.get("status", {}))}
        by_type |= {condition["type"]: condition for condition in self._stalled(stored, reason, text)}
        await self._write_status(ref, stored, {"conditions": list(by_type.values())})

    def _stalled(self, stored: Object, reason: str, text: str) -> Sequence[dict[str, Any]]:
        news = [Condition(conditions.PROGRESSING, False, reason, text[:_MOST_TEXT])]
        known = conditions.known(stored.get("status", {}))
        return conditions.update(known, news, stored["metadata"]["generation"], self._clock.timestamp())

    async def _write_status(self, ref: Ref, stored: Object, status: Mapping[str, Any]) -> bool:
        """Writes a status that differs from the stored one. Returns True if it did."""
        self._journal.record_status(ref, status)
        known = stored.get("status", {})
        if all(known.get(key) == value for key, value in status.items()):
            return False
        await self._cluster.patch_status(ref, status, uid_of(stored))
        await record_changes(self._recorder, stored, status.get("conditions", ()))
        return True


def _gateway_states(pods: Iterable[Pod]) -> dict[str, Any]:
    """Returns the state of each gateway that the status depends on, by name; None for one that did not answer."""
    reports = {pod.name: pod.report for pod in pods if pod.pool == common.GATEWAY}
    return {
        name: report and (report.retried, report.adapters, report.canary and report.canary.canary)
        for name, report in reports.items()
    }


def is_unwatched(observed: Observed, status: Mapping[str, Any]) -> bool:
    """True if only a pass can notice a change: of routes, of adapters that workers refuse and try again, and of ready
    workers that did not answer."""
    refused = conditions.find(status, conditions.ADAPTERS_READY).get("status") == "False"
    silent = any(pod.ready and pod.state is None for pod in observed.pods if pod.pool != common.GATEWAY)
    return bool(status.get("routes")) or refused or silent


def _is_quiet(before: Scaled, scaled: Scaled) -> bool:
    """True if the decision changes nothing that is written."""
    same = (scaled.status, scaled.condition) == (before.status, before.condition)
    return same and not (scaled.actions or scaled.news)
