"""Which templates pods are made from: the manifest's, and the last ones of which all ran well. Pure.

The latter are kept in ControllerRevisions, those of pools and gateway at once: what ran well did so together. That the
manifest's has failed is remembered in the status, and known again until the manifest makes another one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from legato_operator.api import conditions, roles
from legato_operator.cluster import Object, labels_of, ref_of, uid_of
from legato_operator.manifests import common, gateway, revision, worker
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observed import Observed, Pod
from legato_operator.planning import drift, failure
from legato_operator.planning.actions import Apply, Delete
from legato_operator.planning.failure import Failure
from legato_operator.planning.limits import PoolTarget
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

    @property
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


def of(observed: Observed, targets: Mapping[str, PoolTarget], placement: PodPlacement) -> dict[str, Revisions]:
    """Of every pool of the manifest. With `autoRollback`, all are taken back where one is known to have failed."""
    service = observed.service
    desired = {pool: worker.template(service, pool, placement) for pool in targets}
    failures = {pool: _remembered(observed, pool, template) for pool, template in desired.items()}
    taken_back = service.spec.rollout.auto_rollback and any(failures.values())
    return {
        pool: _of_pool(observed, pool, template, failures[pool] if taken_back else None, taken_back)
        for pool, template in desired.items()
    }


def of_gateway(observed: Observed, placement: PodPlacement, held: bool) -> Revisions:
    """A gateway of another model speaks to none of the workers there are: `held`, it stays as it is."""
    desired = gateway.template(observed.service, placement)
    newest = _newest(observed, common.GATEWAY)
    good = revision.template_of(newest) if newest else None
    if good is not None and (held or common.revision_of(good) == common.revision_of(desired)):
        return Revisions(desired, good, taken_back=held)
    revisions = ("", common.revision_of(desired))  # those of a Deployment are told apart by nothing
    pods = [pod for pod in observed.of_pool(common.GATEWAY) if pod.revision in revisions and not pod.on_its_way_out]
    return Revisions(desired, good, failure.find(pods, observed.service.spec.rollout.progress_deadline))


def _of_pool(
    observed: Observed, pool: str, desired: Template, remembered: Failure | None, taken_back: bool
) -> Revisions:
    newest = _newest(observed, pool)
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
    return failure.find([pod], float("inf")) is not None


def _remembered(observed: Observed, pool: str, desired: Template) -> Failure | None:
    known = (observed.status.get("pools") or {}).get(pool) or {}
    if known.get("failedRevision") != common.revision_of(desired):
        return None
    return Failure(known.get("failureReason", conditions.ROLLOUT_FAILED), known.get("failure", ""))


def _kept(observed: Observed, role: str) -> list[Object]:
    """The oldest first. One that somebody else made may hold anything."""
    mine = (item for item in observed.objects if item["kind"] == common.REVISION and common.is_ours(item))
    found = [item for item in mine if labels_of(item).get(names.LABEL_ROLE) == role]
    return sorted(found, key=lambda item: int(item["revision"]))


def _newest(observed: Observed, role: str) -> Object | None:
    return next(reversed(_kept(observed, role)), None)


def keep(observed: Observed, found: Mapping[str, Revisions]) -> Iterator[Apply]:
    """Note that these are whole, each beside the older ones."""
    for role, revisions in found.items():
        owner = _owner(observed, role)
        if owner is None:
            continue
        newest = _newest(observed, role)
        number = int(newest["revision"]) if newest else 0
        made = revision.controller_revision(observed.service, role, revisions.template, number + revisions.changing)
        whole = common.signed(common.owned(made, owner))
        live = observed.find(common.REVISION, made["metadata"]["name"])
        if not drift.contained(whole, live):
            yield Apply(whole, force=live is not None)


def _owner(observed: Observed, role: str) -> Object | None:
    """Whose end is theirs."""
    if role == common.GATEWAY:
        return common.service_object(observed.service, observed.uid)
    return observed.pools.get(role)


def superseded(observed: Observed) -> Iterator[Delete]:
    """Those that a newer one has replaced, and those of pools that are gone."""
    for role in (*roles.BOTH, common.GATEWAY):
        kept = _kept(observed, role)
        for item in kept[:-1] if _owner(observed, role) else kept:
            yield Delete(ref_of(item), uid_of(item))
