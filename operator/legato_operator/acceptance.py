"""Chooses the spec that a pass reconciles: the newest or, if that is refused, the last usable one.

The latter is kept in a ControllerRevision of the service (`revisions.keep_spec`), so that it survives a restart.
"""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from legato_operator.api import conditions, parsing, roles
from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Cluster, Object, is_leaving, ref_of, uid_of
from legato_operator.errors import ClusterError, Invalid, ManifestError, Unavailable
from legato_operator.manifests import common
from legato_operator.manifests.placement import PodPlacement
from legato_operator.manifests.pods import gateway, model, worker
from legato_operator.observing.observed import Accepted, Refusal
from legato_operator.planning import checks
from legato_operator.planning.checks import Problem
from legato_operator.planning.rollout import revisions
from legato_protocol import names

_FIELD = re.compile(r"\.?\bspec\.template\.([^\s:]+)")  # of a trial's pod template
_CONTAINER = re.compile(r"spec\.(containers|initContainers)\[(\d+)\]\.")


async def accept(cluster: Cluster, stored: Object, placement: PodPlacement) -> Accepted | Refusal:
    """Returns the spec of a stored service to reconcile, or a Refusal without a usable spec."""
    ref = ref_of(stored)
    listing = await cluster.list(common.REVISION, ref.namespace, {names.LABEL_SERVICE: ref.name})
    kept = revisions.newest_of((item for item in listing.items if _is_owned(item, stored)), common.MANIFEST)
    newest = await _newest(cluster, stored, placement, kept)
    if isinstance(newest, Accepted) or kept is None:
        return newest
    before = _read({**stored, "spec": kept["data"]}, kept["revision"], placement)
    if isinstance(before, Refusal):  # the operator that kept it had other rules
        return newest
    refusal = None if is_leaving(stored) else newest
    return Accepted(before.service, before.generation, before.written, refusal, before.unknown)


def _is_owned(item: Object, stored: Object) -> bool:
    """True if the object belongs to this service and not to an earlier one of the same name."""
    return any(owner["uid"] == uid_of(stored) for owner in item["metadata"].get("ownerReferences", ()))


async def _newest(cluster: Cluster, stored: Object, placement: PodPlacement, kept: Object | None) -> Accepted | Refusal:
    newest = _read(stored, stored["metadata"]["generation"], placement)
    if isinstance(newest, Refusal) or is_leaving(stored) or (kept and kept["data"] == newest.written):
        return newest
    problems = [problem async for problem in _try(cluster, newest.service, placement)]
    return Refusal(newest.generation, conditions.INVALID, checks.text(problems)) if problems else newest


def _read(stored: Object, generation: int, placement: PodPlacement) -> Accepted | Refusal:
    """Returns the verdict by the object alone. A service that is being deleted only needs to be readable."""
    try:
        service = parsing.service_from_object(stored)
    except ManifestError as error:
        return Refusal(generation, conditions.INVALID, checks.text(error.problems))
    refusal = None if is_leaving(stored) else checks.refusal(service.spec, generation, placement)
    unknown = tuple(parsing.unknown_fields(stored))
    return refusal or Accepted(service, generation, stored["spec"], unknown=unknown)


async def _try(cluster: Cluster, service: InferenceService, placement: PodPlacement) -> AsyncIterator[Problem]:
    """Yields the cluster's own problems with parts of a manifest that are copied to pods.

    A spec is tried once, and kept if it passes. Refusals that are not about the object's fields are reported when pods
    are created.
    """
    if placement.containers is None:
        return
    hub = service.spec.model.source.hugging_face
    for role in (*roles.with_pool(service.spec), common.GATEWAY):
        part = service.spec.gateway if role == common.GATEWAY else roles.pool(service.spec, role)
        downloads = hub and hub.resources.given and role == roles.DECODE  # once is enough
        if not (part.template or part.resources.given or downloads):
            continue
        trial = _trial(service, role, placement)
        try:
            await cluster.check(trial, posted=role != common.GATEWAY)  # pods are posted, the Deployment is applied
        except Unavailable:
            raise
        except Invalid as error:
            yield _located(role, part.template, trial["spec"]["template"]["spec"], str(error))
        except ClusterError:
            continue


def _trial(service: InferenceService, role: str, placement: PodPlacement) -> dict[str, Any]:
    """Returns a Deployment with a pool's or the gateway's template: a pod would count against quotas, and need its
    account."""
    name = f"{common.pool_name(service, role)}-trial"
    if role == common.GATEWAY:
        template = gateway.template(service, placement)
    else:
        template = worker.template(service, role, placement)
    return common.deployment(service, name, role, template, replicas=0)


def _located(role: str, template: Mapping[str, Any], pod: Mapping[str, Any], refusal: str) -> Problem:
    """Returns the manifest's field and the message of a cluster's refusal of its trial."""
    first = _FIELD.search(refusal)
    if first is None:
        return f"spec.{role}", refusal
    message = refusal[first.end() :].removeprefix(":").strip()
    return _path(role, template, pod, first[1]), _FIELD.sub(lambda more: _path(role, template, pod, more[1]), message)


def _path(role: str, template: Mapping[str, Any], pod: Mapping[str, Any], field: str) -> str:
    """Returns the manifest's path of a field of its trial's pod template. Downloads of adapters have the pool's
    resources."""
    here = f"spec.{role}."
    match = _CONTAINER.match(field)
    if match is None:
        return f"{here}template.{field}" if template else here + field
    kind, rest = match[1], field[match.end() :]
    name = pod[kind][int(match[2])]["name"]
    theirs = [each["name"] for each in template.get("spec", {}).get(kind, ())]
    if name in theirs:
        return f"{here}template.spec.{kind}[{theirs.index(name)}].{rest}"
    return f"spec.model.source.huggingFace.{rest}" if name == model.DOWNLOAD else here + rest
