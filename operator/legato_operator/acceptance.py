"""Which spec a pass works with: the newest, or where that cannot be had, the last one that could.

A cluster keeps the latter in a ControllerRevision of the service (`revisions.keep_spec`), so that a restart finds it.
"""

import re
from collections.abc import AsyncIterator, Mapping
from typing import Any

from legato_operator.api import conditions, parsing, roles
from legato_operator.api.resources import InferenceService
from legato_operator.cluster import Cluster, Object, is_leaving, ref_of, uid_of
from legato_operator.errors import ClusterError, Invalid, ManifestError, Unavailable
from legato_operator.manifests import common, gateway, model, worker
from legato_operator.manifests.placement import PodPlacement
from legato_operator.observing.observed import Accepted, Refusal
from legato_operator.planning import checks, revisions
from legato_operator.planning.checks import Problem
from legato_protocol import names

_FIELD = re.compile(r"\.?\bspec\.template\.([^\s:]+)")  # of a trial's pod template
_CONTAINER = re.compile(r"spec\.(containers|initContainers)\[(\d+)\]\.")


async def accept(cluster: Cluster, stored: Object, placement: PodPlacement) -> Accepted | Refusal:
    """What to reconcile of the service that is stored so; a Refusal where no spec of it can be."""
    ref = ref_of(stored)
    listing = await cluster.list(common.REVISION, ref.namespace, {names.LABEL_SERVICE: ref.name})
    kept = revisions.newest_of((item for item in listing.items if _is_of(item, stored)), common.MANIFEST)
    found = await _newest(cluster, stored, placement, kept)
    if isinstance(found, Accepted) or kept is None:
        return found
    before = _read({**stored, "spec": kept["data"]}, kept["revision"], placement)
    if isinstance(before, Refusal):  # by an operator that knows other rules than the one that kept it
        return found
    refusal = None if is_leaving(stored) else found
    return Accepted(before.service, before.generation, before.written, refusal, before.unknown)


def _is_of(item: Object, stored: Object) -> bool:
    """Not of an earlier service of the same name."""
    return any(owner["uid"] == uid_of(stored) for owner in item["metadata"].get("ownerReferences", ()))


async def _newest(cluster: Cluster, stored: Object, placement: PodPlacement, kept: Object | None) -> Accepted | Refusal:
    found = _read(stored, stored["metadata"]["generation"], placement)
    if isinstance(found, Refusal) or is_leaving(stored) or (kept and kept["data"] == found.written):
        return found
    problems = [problem async for problem in _tried(cluster, found.service, placement)]
    return Refusal(found.generation, conditions.INVALID, checks.text(problems)) if problems else found


def _read(stored: Object, generation: int, placement: PodPlacement) -> Accepted | Refusal:
    """What of the object itself can be told. One that is leaving needs no more than that it can be read."""
    try:
        service = parsing.service_from_object(stored)
    except ManifestError as error:
        return Refusal(generation, conditions.INVALID, checks.text(error.problems))
    refusal = None if is_leaving(stored) else checks.refusal(service.spec, generation, placement)
    unknown = tuple(parsing.unknown_fields(stored))
    return refusal or Accepted(service, generation, stored["spec"], unknown=unknown)


async def _tried(cluster: Cluster, service: InferenceService, placement: PodPlacement) -> AsyncIterator[Problem]:
    """What the cluster itself says of the parts of a manifest that become parts of pods as they are.

    Tried once: a spec that stood the trial is kept. A refusal for another reason than the object's fields is told when
    pods are made.
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
    """A Deployment with a pool's or the gateway's template: a pod itself would be measured by quotas, and want its
    account first.
    """
    name = f"{common.pool_name(service, role)}-trial"
    if role == common.GATEWAY:
        made = gateway.pod(service, name, gateway.template(service, placement))
    else:
        made = worker.pod(service, name, worker.template(service, role, placement))
    metadata = {key: made["metadata"][key] for key in ("labels", "annotations") if key in made["metadata"]}
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": common.selector(service, role=role)},
        "template": {"metadata": metadata, "spec": made["spec"]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": common.DEPLOYMENT,
        "metadata": common.metadata(service, name),
        "spec": spec,
    }


def _located(role: str, template: Mapping[str, Any], pod: Mapping[str, Any], refusal: str) -> Problem:
    """The field of the manifest that a cluster's refusal of its trial is about, and what it says."""
    first = _FIELD.search(refusal)
    if first is None:
        return f"spec.{role}", refusal
    message = refusal[first.end() :].removeprefix(":").strip()
    return _path(role, template, pod, first[1]), _FIELD.sub(lambda more: _path(role, template, pod, more[1]), message)


def _path(role: str, template: Mapping[str, Any], pod: Mapping[str, Any], field: str) -> str:
    """Where in the manifest a field of its trial's pod template comes from. What downloads an adapter has the pool's
    resources."""
    here = f"spec.{role}."
    found = _CONTAINER.match(field)
    if found is None:
        return f"{here}template.{field}" if template else here + field
    kind, rest = found[1], field[found.end() :]
    name = pod[kind][int(found[2])]["name"]
    theirs = [each["name"] for each in template.get("spec", {}).get(kind, ())]
    if name in theirs:
        return f"{here}template.spec.{kind}[{theirs.index(name)}].{rest}"
    return f"spec.model.source.huggingFace.{rest}" if name == model.DOWNLOAD else here + rest
