"""Distinguishes changes of a service's manifest from changes of the operator, which wait for an upgrade slot. Pure.

This operator builds templates from both manifests: the one of the good templates and today's. If they are equal, any
other difference comes from the operator's version. The service then keeps its templates until it is upgraded.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from legato_operator.api import parsing
from legato_operator.cluster import Object
from legato_operator.errors import ManifestError
from legato_operator.manifests import common, revision
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.pods import gateway, worker
from legato_operator.observing.observed import Observed
from legato_operator.planning.rollout import revisions
from legato_operator.planning.rollout.revisions import Template

UPGRADE_SLOT = "upgradeTurn"  # the field of a service's status while it is upgraded


class UpgradeState(Enum):
    """The state of a service relative to the templates that this operator builds from its manifest."""

    CURRENT = "runs them"
    EDITED = "rolls them out immediately, with a change of the manifest"
    WAITING = "keeps its own until it is upgraded"
    UPGRADING = "is being upgraded to them"


@dataclass(frozen=True)
class Upgrade:
    templates: Mapping[str, Template]  # of new pods, by role
    state: UpgradeState


def assess(observed: Observed, pools: Iterable[str], placement: PodPlacement) -> Upgrade:
    """Returns the templates that the service's pods should have now. Processes of one machine need no upgrade."""
    desired = {pool: worker.template(observed.service, pool, placement) for pool in pools}
    desired[common.GATEWAY] = gateway.template(observed.service, placement)
    kept = {role: revisions.newest_of(observed.objects, role) for role in desired}
    good = {role: revision.template_of(item) for role, item in kept.items() if item is not None}
    differ = any(common.revision_of(template) != common.revision_of(desired[role]) for role, template in good.items())
    if placement.containers is None or not differ:
        return Upgrade(desired, UpgradeState.CURRENT)
    if any(_is_edited(observed, placement, role, kept[role], template) for role, template in desired.items()):
        return Upgrade(desired, UpgradeState.EDITED)
    if observed.status.get(UPGRADE_SLOT):
        return Upgrade(desired, UpgradeState.UPGRADING)
    return Upgrade({**desired, **good}, UpgradeState.WAITING)


def _is_edited(observed: Observed, placement: PodPlacement, role: str, kept: Object | None, desired: Template) -> bool:
    """True if the manifest asks for other pods of a role than the good ones, or the role is new."""
    if kept is None:
        return True
    spec = revisions.spec_of(observed, kept)
    if spec is None:
        return True
    if revisions.made_from(kept) is None and not _is_still(observed, role, revision.template_of(kept)):
        return True  # in the middle of a rollout whose spec was not recorded
    if common.revision_of(spec) == common.revision_of(observed.written):
        return False
    try:
        before = parsing.with_spec(observed.service, spec)
    except ManifestError:  # the old spec breaks this version's rules and today's does not, so they differ
        return True
    made = gateway.template(before, placement) if role == common.GATEWAY else worker.template(before, role, placement)
    return common.revision_of(made) != common.revision_of(desired)


def _is_still(observed: Observed, role: str, good: Template) -> bool:
    """True if all staying pods of a role are of its good revision."""
    name = common.revision_of(good)
    return all(pod.revision == name for pod in observed.of_pool(role) if not pod.on_its_way_out)
