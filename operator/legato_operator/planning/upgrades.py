"""Whether a service differs from what is desired by its manifest, or only by what another operator makes of it. Pure.

Both manifests, the one that the good templates were made from and today's, are built by this operator: where that gives
the same, whatever else differs is the operator's own. Such a service keeps its pods, and starts others like them, until
its turn.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from legato_operator.api import parsing
from legato_operator.cluster import Object
from legato_operator.errors import ManifestError
from legato_operator.manifests import common, gateway, revision, worker
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observed import Observed
from legato_operator.planning import revisions
from legato_operator.planning.revisions import Template

TURN = "upgradeTurn"  # the field of a status that says that a service has its turn


class UpgradeState(Enum):
    """How a service stands to what this operator makes of its manifest."""

    CURRENT = "runs that"
    EDITED = "rolls it out at once, with a change of the manifest"
    WAITING = "keeps what it has until its turn"
    TURN = "has its turn"


@dataclass(frozen=True)
class Upgrade:
    templates: Mapping[str, Template]  # by role: what pods are to be made from
    state: UpgradeState


def of(observed: Observed, pools: Iterable[str], placement: PodPlacement) -> Upgrade:
    """What the service's pods are to be now. Processes of one machine have no operator but this one."""
    desired = {pool: worker.template(observed.service, pool, placement) for pool in pools}
    desired[common.GATEWAY] = gateway.template(observed.service, placement)
    kept = {role: revisions.newest_of(observed.objects, role) for role in desired}
    good = {role: revision.template_of(item) for role, item in kept.items() if item is not None}
    differ = any(common.revision_of(template) != common.revision_of(desired[role]) for role, template in good.items())
    if placement.containers is None or not differ:
        return Upgrade(desired, UpgradeState.CURRENT)
    if any(_is_edited(observed, placement, role, kept[role], template) for role, template in desired.items()):
        return Upgrade(desired, UpgradeState.EDITED)
    if observed.status.get(TURN):
        return Upgrade(desired, UpgradeState.TURN)
    return Upgrade({**desired, **good}, UpgradeState.WAITING)


def _is_edited(observed: Observed, placement: PodPlacement, role: str, kept: Object | None, desired: Template) -> bool:
    """Whether the manifest asks for other pods of a role than the good ones; a role that has none is new."""
    if kept is None:
        return True
    spec = revisions.spec_of(observed, kept)
    if spec is None:
        return True
    if revisions.made_from(kept) is None and not _is_still(observed, role, revision.template_of(kept)):
        return True  # in the middle of a rollout, whose beginning nobody noted
    if common.revision_of(spec) == common.revision_of(observed.written):
        return False
    try:
        before = parsing.with_spec(observed.service, spec)
    except ManifestError:  # by rules of another version: today's manifest keeps them, so it is another one
        return True
    made = gateway.template(before, placement) if role == common.GATEWAY else worker.template(before, role, placement)
    return common.revision_of(made) != common.revision_of(desired)


def _is_still(observed: Observed, role: str, good: Template) -> bool:
    """Whether all pods of a role that stay are of its good revision."""
    name = common.revision_of(good)
    return all(pod.revision == name for pod in observed.of_pool(role) if not pod.on_its_way_out)
