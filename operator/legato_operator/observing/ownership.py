"""Finds a service's own pods, which get its token, by owner: anybody can put its labels on a pod. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from legato_operator.cluster import Object, Ref, ref_of, uid_of
from legato_operator.manifests import common
from legato_operator.observing import pod_facts
from legato_operator.observing.observed import Pod
from legato_protocol import names

REPLICA_SET = "ReplicaSet"
MAKERS = (names.WORKER_POOL, common.DEPLOYMENT, REPLICA_SET)  # kinds that create a service's pods, also indirectly


def read(
    service: Ref, uid: str, pods: Iterable[Object], objects: Iterable[Object], now: float
) -> tuple[list[Pod], frozenset[str]]:
    """Returns the pods of the service with this uid, and the names of foreign pods with its labels.

    `objects` must contain the objects of the kinds `MAKERS`. Pods that only a deleted pool or Deployment owns are
    included until Kubernetes has removed them, but without an address, because they must not be contacted.
    """
    makers = _makers(uid, tuple(objects))
    mine, others = [], set()
    for item in pods:
        owner = controller(item)
        if pod_facts.belongs(item) and owner.get("uid") in makers:
            mine.append(pod_facts.read(item, now))
        elif pod_facts.belongs(item) and _is_adoptable(service, uid, item, owner):
            mine.append(dataclasses.replace(pod_facts.read(item, now), adoptable=not owner))
        elif pod_facts.belongs(item) and _is_orphaned(service, item, owner):
            mine.append(dataclasses.replace(pod_facts.read(item, now), address="", orphaned=True))
        else:
            others.add(ref_of(item).name)
    return mine, frozenset(others)


def controller(item: Object) -> Mapping[str, Any]:
    """Returns the reference to the object's controller, or an empty mapping."""
    owners: Iterable[Mapping[str, Any]] = item["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), {})


def _makers(uid: str, objects: tuple[Object, ...]) -> frozenset[str]:
    """Returns the UIDs of the objects that create the service's pods, the service itself included: on one machine it
    creates its gateway's pods."""
    direct = _controlled(objects, (names.WORKER_POOL, common.DEPLOYMENT), frozenset((uid,)))
    return direct | _controlled(objects, (REPLICA_SET,), direct) | {uid}


def _controlled(objects: tuple[Object, ...], kinds: tuple[str, ...], by: frozenset[str]) -> frozenset[str]:
    return frozenset(uid_of(item) for item in objects if item["kind"] in kinds and controller(item).get("uid") in by)


def _is_adoptable(service: Ref, uid: str, item: Object, owner: Mapping[str, Any]) -> bool:
    """True if the pod's pool was deleted, and the pod serves on because the service owns it, too."""
    is_owned = any(each.get("uid") == uid for each in item["metadata"].get("ownerReferences", ()))
    return is_owned and (not owner or _is_orphaned(service, item, owner))


def _is_orphaned(service: Ref, item: Object, owner: Mapping[str, Any]) -> bool:
    """True if a deleted WorkerPool or Deployment of this name created the pod; a ReplicaSet outlives its Deployment."""
    role, kind, name = item["metadata"]["labels"][names.LABEL_ROLE], owner.get("kind"), owner.get("name", "")
    if role == common.GATEWAY:
        return kind == REPLICA_SET and str(name).startswith(f"{service.name}-{role}-")
    return (kind, name) == (names.WORKER_POOL, f"{service.name}-{role}")
