"""Chooses the templates that pods are made from: the manifest's, or the last good ones. Pure.

Good templates are kept in ControllerRevisions, for pools and gateway in one batch, because they ran well together.
The status remembers that the manifest's revision has failed, until the manifest changes it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from legato_operator.api import conditions, roles
from legato_operator.cluster import Object, labels_of, ref_of, uid_of
from legato_operator.manifests import common, revision
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning import drift, failure
from legato_operator.planning.actions import Apply, Delete
from legato_operator.planning.failure import Failure
from legato_protocol import names

Template = dict[str, Any]


@dataclass(frozen=True)
class Revisions:
    """Desired and last good revision of one pool, or of the gateway."""

    desired: Template
    good: Template | None = None  # None: no revision has ever been complete
    failure: Failure | None = None  # why the desired one cannot run
    rolled_back: bool = False  # pods are made from the good one

    @property
    def template(self) -> Template:
        """Template of new pods."""
        return self.good if self.rolled_back and self.good is not None else self.desired

    @cached_property
    def desired_name(self) -> str:
        """Name of the desired revision."""
        return common.revision_of(self.desired)

    @cached_property
    def good_name(self) -> str:
        """Name of the last good revision; empty without one."""
        return "" if self.good is None else common.revision_of(self.good)

    @property
    def name(self) -> str:
        """Name of the revision of new pods."""
        return self.good_name if self.template is self.good else self.desired_name

    @property
    def changing(self) -> bool:
        """True if the revision of new pods has never been complete."""
        return self.name != self.good_name

    @property
    def differ(self) -> bool:
        """True if there is a good revision and the manifest desires another."""
        return self.good is not None and self.desired_name != self.good_name

    def is_useless(self, pod: Pod) -> bool:
        """True if the pod is not ready and its revision is neither desired nor was ever complete."""
        known = (self.name, self.good_name or self.name)
        return not pod.ready and pod.revision not in known and (self.good is not None or _fails(pod))


def choose_for_pools(observed: Observed, desired: Mapping[str, Template]) -> dict[str, Revisions]:
    """Returns the revisions of every pool, given the desired templates by role.

    With `autoRollback` or a canary, all pools are rolled back if the revision of one, or of the gateway, has failed.
    """
    failures = {role: _remembered(observed, role, template) for role, template in desired.items()}
    if not _was_compared(observed, desired):
        failures = {role: each for role, each in failures.items() if each and each.reason != conditions.CANARY_FAILED}
    rolled_back = observed.service.spec.rollout.rolls_back and any(failures.values())
    return {
        pool: _choose_for_pool(observed, pool, template, failures.get(pool) if rolled_back else None, rolled_back)
        for pool, template in desired.items()
        if pool != common.GATEWAY
    }


def choose_for_gateway(observed: Observed, desired: Template, proven: bool, pools_rolled_back: bool) -> Revisions:
    """Returns the gateway's revisions.

    A new gateway may not be able to use old workers, so the gateway stays as it is until the new revision is `proven`
    in the pools, and if they are rolled back. A failing new gateway stays as evidence of the failure.
    """
    good = _good(observed, common.GATEWAY)
    name = common.revision_of(desired)
    if good is not None and common.revision_of(good) == name:
        return Revisions(desired, good)
    rollout = observed.service.spec.rollout
    pods = [pod for pod in observed.of_pool(common.GATEWAY) if pod.revision == name and not pod.on_its_way_out]
    seen = failure.find(pods, rollout.progress_deadline)
    remembered = _remembered(observed, common.GATEWAY, desired) if rollout.rolls_back else None
    if good is not None and (pools_rolled_back or remembered or not (proven or seen)):
        return Revisions(desired, good, remembered, rolled_back=True)
    return Revisions(desired, good, seen)


def _choose_for_pool(
    observed: Observed, pool: str, desired: Template, remembered: Failure | None, rolled_back: bool
) -> Revisions:
    good = _good(observed, pool)
    name = common.revision_of(desired)
    if good is not None and common.revision_of(good) == name:
        return Revisions(desired, good)
    staying = [pod for pod in observed.of_pool(pool) if pod.revision == name and not pod.on_its_way_out]
    seen = failure.find(staying, observed.service.spec.rollout.progress_deadline)
    if good is None:  # nothing to roll back to: only a current failure counts
        return Revisions(desired, None, seen)
    return Revisions(desired, good, seen or remembered, rolled_back)


def _fails(pod: Pod) -> bool:
    return bool(pod.blocked) or failure.find([pod], float("inf")) is not None


def _remembered(observed: Observed, pool: str, desired: Template) -> Failure | None:
    """Returns the failure of a pool's, or the gateway's, desired revision that an earlier pass reported."""
    reported = {common.GATEWAY: observed.status.get(common.GATEWAY), **(observed.status.get("pools") or {})}
    known = reported.get(pool) or {}
    if known.get("failedRevision") != common.revision_of(desired):
        return None
    return Failure(known.get("failureReason", conditions.ROLLOUT_FAILED), known.get("failure", ""))


def _was_compared(observed: Observed, desired: Mapping[str, Template]) -> bool:
    """True if the pools change as in the canary that failed. An edit of any pool may have repaired it."""
    failed, now = {}, {}
    for pool in roles.BOTH:
        known = (observed.status.get("pools") or {}).get(pool) or {}
        if known.get("failureReason") == conditions.CANARY_FAILED:
            failed[pool] = known["failedRevision"]
        if pool in desired and (each := Revisions(desired[pool], _good(observed, pool))).differ:
            now[pool] = each.desired_name
    return failed == now


def _good(observed: Observed, role: str) -> Template | None:
    """Returns the last good template of a role, or None."""
    newest = newest_of(observed.objects, role)
    return revision.template_of(newest) if newest else None


def _kept(objects: Iterable[Object], role: str) -> list[Object]:
    """Returns the operator's ControllerRevisions of a role, oldest first; foreign ones may contain anything.

    Two specs may share a generation: a new default in the CRD changes a spec that is read without changing the stored
    one.
    """
    mine = (item for item in objects if item["kind"] == common.REVISION and common.is_ours(item))
    kept = [item for item in mine if labels_of(item).get(names.LABEL_ROLE) == role]
    return sorted(kept, key=lambda item: (int(item["revision"]), item["metadata"].get("creationTimestamp", "")))


def newest_of(objects: Iterable[Object], role: str) -> Object | None:
    """Returns the newest ControllerRevision of a role, or None."""
    return next(reversed(_kept(objects, role)), None)


def made_from(item: Object) -> str | None:
    """Returns the revision of the spec that a template was made from; None if an older operator did not record it."""
    name: str | None = item["metadata"].get("annotations", {}).get(common.ANNOTATION_MADE_FROM)
    return name


def spec_of(observed: Observed, item: Object) -> Mapping[str, Any] | None:
    """Returns the spec, as written, that a kept template was made from; None if unknown.

    A template without a recorded spec counts as made from the last usable spec.
    """
    name = made_from(item)
    if name == common.revision_of(observed.written):
        return observed.written
    specs = _kept(observed.objects, common.MANIFEST)
    mine = [each for each in specs if name in (None, labels_of(each).get(names.LABEL_POD_REVISION))]
    return mine[-1]["data"] if mine else None


def keep(observed: Observed, every: Mapping[str, Revisions]) -> Iterator[Apply]:
    """Yields the ControllerRevisions that record these templates as good."""
    written = common.revision_of(observed.written) if observed.written else ""
    for role, revisions in every.items():
        owner = _owner(observed, role)
        if owner is None:
            continue
        newest = newest_of(observed.objects, role)
        number = int(newest["revision"]) if newest else 0
        yield from _keep(observed, owner, role, revisions.template, number + revisions.changing, written)


def keep_spec(observed: Observed) -> Iterator[Apply]:
    """Yields the ControllerRevision that records this spec as usable: it is reconciled while a newer one is refused.

    The spec needs its own object: in the status it would double the size of frequent writes, and an annotation is too
    small for the largest spec.
    """
    if observed.refusal is None and observed.written:
        owner = common.service_object(observed.service, observed.uid)
        yield from _keep(observed, owner, common.MANIFEST, observed.written, observed.generation)


def _keep(
    observed: Observed, owner: Object, role: str, data: Mapping[str, Any], number: int, spec: str = ""
) -> Iterator[Apply]:
    made = revision.controller_revision(observed.service, role, data, number, spec)
    whole = common.signed(common.owned(made, owner))
    live = observed.find(common.REVISION, made["metadata"]["name"])
    if not drift.contained(whole, live):
        yield Apply(whole, force=live is not None)


def _owner(observed: Observed, role: str) -> Object | None:
    """Returns the owner of a role's ControllerRevisions."""
    if role in (common.GATEWAY, common.MANIFEST):
        return common.service_object(observed.service, observed.uid)
    return observed.pools.get(role)


def superseded(observed: Observed) -> Iterator[Delete]:
    """Yields the deletion of ControllerRevisions that a newer one replaces, and of removed pools.

    A spec stays as long as a template made from it.
    """
    used = set()
    for role in (*roles.BOTH, common.GATEWAY, common.MANIFEST):
        kept = _kept(observed.objects, role)
        newest = kept[-1:] if _owner(observed, role) else []
        used |= {made_from(item) for item in newest}
        for item in kept:
            if item not in newest and labels_of(item).get(names.LABEL_POD_REVISION) not in used:
                yield Delete(ref_of(item), uid_of(item))
