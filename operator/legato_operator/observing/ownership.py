"""Which pods are a service's own. Anybody can put its labels on a pod, and its own are sent its token. Pure."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from legato_operator.cluster import Object, Ref, ref_of, uid_of
from legato_operator.manifests import common
from legato_operator.observing import pod_facts
from legato_operator.observing.observed import Pod
from legato_protocol import names

REPLICA_SET = "ReplicaSet"
MAKERS = (names.WORKER_POOL, common.DEPLOYMENT, REPLICA_SET)  # what a service's pods are made by, or through


def read(
    service: Ref, uid: str, pods: Iterable[Object], objects: Iterable[Object], now: float
) -> tuple[list[Pod], frozenset[str]]:
    """The pods of the service with that uid, and the names of others that carry its labels.

    `objects` holds those of `MAKERS`. The pods of a pool or Deployment of that name that was deleted are among the
    service's until Kubernetes has removed them, but nobody is to speak to them: they have no address.
    """
    makers = _makers(uid, tuple(objects))
    mine, others = [], set()
    for item in pods:
        owner = controller(item)
        if pod_facts.belongs(item) and owner.get("uid") in makers:
            mine.append(pod_facts.read(item, now))
        elif pod_facts.belongs(item) and _is_of_earlier(service, item, owner):
            mine.append(dataclasses.replace(pod_facts.read(item, now), address="", orphaned=True))
        else:
            others.add(ref_of(item).name)
    return mine, frozenset(others)


def controller(item: Object) -> Mapping[str, Any]:
    """The reference to the object that controls this one; empty where none does."""
    owners: Iterable[Mapping[str, Any]] = item["metadata"].get("ownerReferences", ())
    return next((owner for owner in owners if owner.get("controller")), {})


def _makers(uid: str, objects: tuple[Object, ...]) -> frozenset[str]:
    """UIDs. On one machine the service itself makes its gateway's pods; on a cluster a ReplicaSet of its Deployment."""
    direct = _controlled(objects, (names.WORKER_POOL, common.DEPLOYMENT), frozenset((uid,)))
    return direct | _controlled(objects, (REPLICA_SET,), direct) | {uid}


def _controlled(objects: tuple[Object, ...], kinds: tuple[str, ...], by: frozenset[str]) -> frozenset[str]:
    return frozenset(uid_of(item) for item in objects if item["kind"] in kinds and controller(item).get("uid") in by)


def _is_of_earlier(service: Ref, item: Object, owner: Mapping[str, Any]) -> bool:
    """Of a WorkerPool, or of a Deployment by the name of its ReplicaSet, which outlives it."""
    role, kind, name = item["metadata"]["labels"][names.LABEL_ROLE], owner.get("kind"), owner.get("name", "")
    if role == common.GATEWAY:
        return kind == REPLICA_SET and str(name).startswith(f"{service.name}-{role}-")
    return (kind, name) == (names.WORKER_POOL, f"{service.name}-{role}")
