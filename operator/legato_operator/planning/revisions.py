"""Which templates pods are made from: the manifest's, and the last ones of which all ran well. Pure.

The latter are kept in ControllerRevisions, those of pools and gateway at once: what ran well did so together. That the
manifest's has failed is remembered in the status, and known again until the manifest makes another one.
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
    """Of one pool, or of the gateway."""

    desired: Template
    good: Template | None = None  # None: no revision was ever whole
    failure: Failure | None = None  # why the desired one cannot run
    taken_back: bool = False  # pods are made from the good one

    @property
    def template(self) -> Template:
        """What new pods are made from."""
        return self.good if self.taken_back and self.good is not None else self.desired

    @cached_property
    def changing(self) -> bool:
        """Whether the revision that pods are made from was never whole."""
        return self.good is None or common.revision_of(self.template) != common.revision_of(self.good)

    @property
    def differ(self) -> bool:
        """Whether there is a good one, and the manifest asks for another."""
        return self.good is not None and common.revision_of(self.desired) != common.revision_of(self.good)

    def is_useless(self, pod: Pod) -> bool:
        """Whether it is of a revision that is neither desired nor was ever complete, and does not serve."""
        known = [common.revision_of(template) for template in (self.template, self.good) if template is not None]
        return not pod.ready and pod.revision not in known and (self.good is not None or _fails(pod))


def of_pools(observed: Observed, desired: Mapping[str, Template]) -> dict[str, Revisions]:
    """Of every pool, of these templates by role. With `autoRollback`, all are taken back where one is known to have
    failed, or the gateway is.
    """
    failures = {role: _remembered(observed, role, template) for role, template in desired.items()}
    taken_back = observed.service.spec.rollout.auto_rollback and any(failures.values())
    return {
        pool: _of_pool(observed, pool, template, failures[pool] if taken_back else None, taken_back)
        for pool, template in desired.items()
        if pool != common.GATEWAY
    }


def of_gateway(observed: Observed, desired: Template, proven: bool, pools_back: bool) -> Revisions:
    """A gateway of another model speaks to none of the workers there are: until the new revision is `proven` in the
    pools, and where they are taken back, it stays as it is. One that fails stays beside it: it shows that.
    """
    newest = newest_of(observed.objects, common.GATEWAY)
    good = revision.template_of(newest) if newest else None
    name = common.revision_of(desired)
    if good is not None and common.revision_of(good) == name:
        return Revisions(desired, good)
    rollout = observed.service.spec.rollout
    pods = [pod for pod in observed.of_pool(common.GATEWAY) if pod.revision == name and not pod.on_its_way_out]
    seen = failure.find(pods, rollout.progress_deadline)
    remembered = _remembered(observed, common.GATEWAY, desired) if rollout.auto_rollback else None
    if good is not None and (pools_back or remembered or not (proven or seen)):
        return Revisions(desired, good, remembered, taken_back=True)
    return Revisions(desired, good, seen)


def _of_pool(
    observed: Observed, pool: str, desired: Template, remembered: Failure | None, taken_back: bool
) -> Revisions:
    newest = newest_of(observed.objects, pool)
    good = revision.template_of(newest) if newest else None
    name = common.revision_of(desired)
    if good is not None and common.revision_of(good) == name:
        return Revisions(desired, good)
    staying = [pod for pod in observed.of_pool(pool) if pod.revision == name and not pod.on_its_way_out]
    seen = failure.find(staying, observed.service.spec.rollout.progress_deadline)
    if good is None:  # nothing to go back to: what is seen counts, and no more than that
        return Revisions(desired, None, seen)
    return Revisions(desired, good, seen or remembered, taken_back)


def _fails(pod: Pod) -> bool:
    return bool(pod.blocked) or failure.find([pod], float("inf")) is not None


def _remembered(observed: Observed, pool: str, desired: Template) -> Failure | None:
    """Why a pool's, or the gateway's, revision failed in an earlier pass."""
    told = {common.GATEWAY: observed.status.get(common.GATEWAY), **(observed.status.get("pools") or {})}
    known = told.get(pool) or {}
    if known.get("failedRevision") != common.revision_of(desired):
        return None
    return Failure(known.get("failureReason", conditions.ROLLOUT_FAILED), known.get("failure", ""))


def _kept(objects: Iterable[Object], role: str) -> list[Object]:
    """The oldest first. One that somebody else made may hold anything.

    Two specs may share a generation: a CRD that adds a default changes what is read, not what is stored.
    """
    mine = (item for item in objects if item["kind"] == common.REVISION and common.is_ours(item))
    found = [item for item in mine if labels_of(item).get(names.LABEL_ROLE) == role]
    return sorted(found, key=lambda item: (int(item["revision"]), item["metadata"].get("creationTimestamp", "")))


def newest_of(objects: Iterable[Object], role: str) -> Object | None:
    """The newest that is kept for a role."""
    return next(reversed(_kept(objects, role)), None)


def made_from(item: Object) -> str | None:
    """The revision of the spec that a kept template was made from; None if an older operator did not tell."""
    found: str | None = item["metadata"].get("annotations", {}).get(common.ANNOTATION_MADE_FROM)
    return found


def spec_of(observed: Observed, item: Object) -> Mapping[str, Any] | None:
    """The spec that a kept template was made from, as written; None where that is not known.

    One that does not tell is taken to be of the last usable spec.
    """
    name = made_from(item)
    if name == common.revision_of(observed.written):
        return observed.written
    specs = _kept(observed.objects, common.MANIFEST)
    mine = [each for each in specs if name in (None, labels_of(each).get(names.LABEL_POD_REVISION))]
    return mine[-1]["data"] if mine else None


def keep(observed: Observed, found: Mapping[str, Revisions]) -> Iterator[Apply]:
    """Note that these are whole, each beside the older ones."""
    written = common.revision_of(observed.written) if observed.written else ""
    for role, revisions in found.items():
        owner = _owner(observed, role)
        if owner is None:
            continue
        newest = newest_of(observed.objects, role)
        number = int(newest["revision"]) if newest else 0
        yield from _keep(observed, owner, role, revisions.template, number + revisions.changing, written)


def keep_spec(observed: Observed) -> Iterator[Apply]:
    """Note that this spec is usable, numbered by its generation: it is reconciled while a newer one is refused.

    As it was written, and in an object of its own: a status would double the size of each of its many writes, and an
    annotation has no room for the largest spec.
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
    """Whose end is theirs."""
    if role in (common.GATEWAY, common.MANIFEST):
        return common.service_object(observed.service, observed.uid)
    return observed.pools.get(role)


def superseded(observed: Observed) -> Iterator[Delete]:
    """Those that a newer one has replaced, and those of pools that are gone. A spec stays as long as what was made
    from it.
    """
    used = set()
    for role in (*roles.BOTH, common.GATEWAY, common.MANIFEST):
        kept = _kept(observed.objects, role)
        newest = kept[-1:] if _owner(observed, role) else []
        used |= {made_from(item) for item in newest}
        for item in kept:
            if item not in newest and labels_of(item).get(names.LABEL_POD_REVISION) not in used:
                yield Delete(ref_of(item), uid_of(item))
