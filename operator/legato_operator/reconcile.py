"""One loop for one object: observe, plan, apply, one status patch, and when to look again."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from legato_operator.acceptance import accept
from legato_operator.api import conditions, parsing
from legato_operator.api.conditions import Condition
from legato_operator.api.resources import Drain
from legato_operator.apply import apply, hold, is_held, release
from legato_operator.autoscaling import Autoscaler, Scaled, with_new_sizes, with_scaling
from legato_operator.clock import Clock
from legato_operator.cluster import Cluster, Object, Ref, is_leaving, uid_of
from legato_operator.errors import ClusterError, Conflict, ManifestError, NotLeading, ObjectNotFound, Unavailable
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.secret import ServiceToken
from legato_operator.observing.observe import Gateways, Workers, find_pods, observe
from legato_operator.observing.observed import Accepted, Observed
from legato_operator.observing.route_hosts import RouteHosts
from legato_operator.planning import status, token_rotation, waves
from legato_operator.planning.actions import Phase, SetToken
from legato_operator.planning.plan import plan
from legato_operator.planning.upgrades import UPGRADE_SLOT
from legato_operator.recorder import NullRecorder, Recorder, record_changes
from legato_operator.upgrading import UpgradeScheduler
from legato_operator.waking import DemandWaker

_END_SLACK = 10.0  # seconds beyond its drain deadline and its pods' last words before a service goes without them
_MOST_TEXT = 1000  # characters of an error in a condition


class StatusJournal(Protocol):
    """Who follows what is known of services."""

    def observe(self, service: Ref, observed: Observed) -> None:
        """A pass has looked at it."""

    def record_status(self, service: Ref, status: Mapping[str, Any]) -> None:
        """These fields of its status are as given now."""

    def remove(self, service: Ref) -> None:
        """It is not there any more."""


class NullStatusJournal:
    """Follows nothing."""

    def observe(self, service: Ref, observed: Observed) -> None:
        return

    def record_status(self, service: Ref, status: Mapping[str, Any]) -> None:
        return

    def remove(self, service: Ref) -> None:
        return


class Reconciler:
    """Brings services closer to their specs. Of theirs it only remembers tokens, for a Secret that is lost."""

    def __init__(
        self,
        cluster: Cluster,
        workers: Workers,
        clock: Clock,
        placement: PodPlacement,
        recorder: Recorder | None = None,
        autoscaler: Autoscaler | None = None,
        journal: StatusJournal | None = None,
        upgrades: UpgradeScheduler | None = None,
        gateways: Gateways | None = None,
        hosts: RouteHosts | None = None,
        waker: DemandWaker | None = None,
    ) -> None:
        """Without an autoscaler, pools keep the sizes that others give them, whatever the mode. Without a `waker`, a
        service at zero starts when it is looked at next.

        Without turns, a service that waits for one waits on. Without `gateways`, none is asked which workers it has
        reached. Without `hosts`, nobody is told that two services want the same.
        """
        self._cluster = cluster
        self._workers = workers
        self._clock = clock
        self._placement = placement
        self._recorder = recorder or NullRecorder()
        self._autoscaler = autoscaler
        self._journal = journal or NullStatusJournal()
        self._upgrades = upgrades
        self._gateways = gateways
        self._hosts = hosts
        self._waker = waker
        self._tokens: dict[tuple[Ref, str], ServiceToken] = {}  # by service and its uid, as they were last

    async def reconcile(self, ref: Ref) -> float | None:
        """One pass. Seconds until the next one is due at the latest, or None when the service is gone.

        Raises a ClusterError that looking again does not mend, after all else of the pass is done.
        """
        stored = await self._find(ref)
        if stored is None:
            return None
        try:
            return await self._pass(ref, stored)
        except Conflict:
            return self._placement.requeue_after
        except ObjectNotFound:
            if await self._find(ref) is None:
                return None
            raise

    async def record_failure(self, ref: Ref, error: Exception) -> None:
        """Write into the service's status why a pass failed, if that can be done."""
        reason = conditions.API_REFUSED if isinstance(error, ClusterError) else conditions.OPERATOR_FAULT
        text = str(error) if isinstance(error, ClusterError) else f"{type(error).__name__}: {error}"
        try:
            stored = await self._find(ref)
            if stored is not None:
                await self._write_stalled(ref, stored, reason, text)
        except ClusterError:
            return  # the cause is in the log and counted; the next pass tells it again

    async def _find(self, ref: Ref) -> Object | None:
        try:
            return await self._cluster.get(ref)
        except ObjectNotFound:
            self._journal.remove(ref)
            if self._waker is not None:
                self._waker.forget(ref)
            self._tokens = {key: token for key, token in self._tokens.items() if key[0] != ref}
            return None

    async def _pass(self, ref: Ref, stored: Object) -> float:
        if is_leaving(stored):
            if self._is_overdue(stored):
                await release(self._cluster, ref)
                return self._placement.requeue_after
        elif not is_held(stored):
            await hold(self._cluster, ref, uid_of(stored))
        accepted = await accept(self._cluster, stored, self._placement)
        if isinstance(accepted, Accepted):
            return await self._move(ref, stored, accepted)
        if is_leaving(stored):
            return await self._end_unread(ref, uid_of(stored))
        pods = await find_pods(self._cluster, ref, uid_of(stored), self._clock.now())
        told = status.refused_status(pods, stored.get("status", {}), accepted, self._clock.timestamp())
        await self._write_status(ref, stored, told)
        return self._placement.resync_after

    async def _move(self, ref: Ref, stored: Object, accepted: Accepted) -> float:
        """One step towards the spec. What the API server refuses keeps nothing else from being done and told."""
        observed = await self._observe(ref, stored, accepted)
        self._journal.observe(ref, observed)
        scaled = await self._autoscaler.poll(observed) if self._autoscaler is not None else Scaled()
        unscaled = await self._try(observed, scaled.phases)
        found = observed if unscaled is not None else with_new_sizes(observed, scaled)
        if self._waker is not None:
            self._waker.follow(ref, found)
        made = with_scaling(plan(found, self._placement), observed, scaled)
        refusal = await self._try(found, made.phases) or unscaled
        if refusal is not None:
            stuck = self._stalled(stored, conditions.API_REFUSED, str(refusal))
            told = {condition["type"]: condition for condition in (*made.status["conditions"], *stuck)}
            await self._write_status(ref, stored, {**made.status, "conditions": list(told.values())})
            raise refusal
        await self._write_status(ref, stored, made.status)
        for reason, note in scaled.news:
            await self._recorder.record(stored, False, reason, note)
        await self._tell_of_token(stored, made.phases)
        if self._upgrades is None or not waves.concerns(made.status, observed.status):
            return made.requeue_after
        again = await self._upgrades.poll()
        return min(made.requeue_after, self._upgrades.every if observed.status.get(UPGRADE_SLOT) else again)

    async def _observe(self, ref: Ref, stored: Object, accepted: Accepted) -> Observed:
        """And remember its token, unless somebody else wrote it."""
        key = ref, uid_of(stored)
        observed = await observe(
            self._cluster, self._workers, self._clock, stored, accepted, self._gateways, self._tokens.get(key)
        )
        if self._hosts is not None and not observed.deleting:
            observed = replace(observed, hosts_taken=await self._hosts.find_taken(stored))
        if self._upgrades is not None:
            observed = replace(observed, upgrades_stopped=self._upgrades.stopped_by)
        if observed.token is not None and not observed.token.edited:
            self._tokens[key] = observed.token
        return observed

    async def _tell_of_token(self, stored: Object, phases: tuple[Phase, ...]) -> None:
        for action in (action for phase in phases for action in phase.actions):
            if isinstance(action, SetToken) and action.reason:
                warning = action.reason in token_rotation.WARNINGS
                await self._recorder.record(stored, warning, action.reason, action.note)

    async def _try(self, observed: Observed, phases: tuple[Phase, ...]) -> ClusterError | None:
        """Carry out all that can be; what was refused for good. Raises what the next look may mend."""
        try:
            await apply(self._cluster, self._workers, observed, phases)
        except (Conflict, NotLeading, Unavailable):
            raise
        except ClusterError as refusal:
            return refusal
        return None

    async def _end_unread(self, ref: Ref, uid: str) -> float:
        """Let a service go whose manifest cannot be read: its pods first, without the order that needs the manifest."""
        pods = await find_pods(self._cluster, ref, uid, self._clock.now())
        for pod in pods:
            if not pod.leaving:
                await self._cluster.delete(Ref("Pod", ref.namespace, pod.name), pod.uid)
        if not pods:
            await release(self._cluster, ref)
        return self._placement.requeue_after

    def _is_overdue(self, stored: Object) -> bool:
        """Whether its pods had their time: a node that is lost must not hold up a namespace's deletion.

        The API server's clock against this machine's, which may differ by some of the slack.
        """
        try:
            deadline = parsing.service_from_object(stored).spec.drain.deadline
        except ManifestError:
            deadline = Drain().deadline
        since = datetime.datetime.fromisoformat(stored["metadata"]["deletionTimestamp"]).timestamp()
        return self._clock.now() - since > deadline + common.LAST_WORDS + _END_SLACK

    async def _write_stalled(self, ref: Ref, stored: Object, reason: str, text: str) -> None:
        told = {condition["type"]: condition for condition in conditions.known(stored.get("status", {}))}
        told |= {condition["type"]: condition for condition in self._stalled(stored, reason, text)}
        await self._write_status(ref, stored, {"conditions": list(told.values())})

    def _stalled(self, stored: Object, reason: str, text: str) -> Sequence[dict[str, Any]]:
        news = [Condition(conditions.PROGRESSING, False, reason, text[:_MOST_TEXT])]
        known = conditions.known(stored.get("status", {}))
        return conditions.update(known, news, stored["metadata"]["generation"], self._clock.timestamp())

    async def _write_status(self, ref: Ref, stored: Object, status: Mapping[str, Any]) -> None:
        self._journal.record_status(ref, status)
        known = stored.get("status", {})
        if all(known.get(key) == value for key, value in status.items()):
            return
        await self._cluster.patch_status(ref, status, uid_of(stored))
        await record_changes(self._recorder, stored, status.get("conditions", ()))
