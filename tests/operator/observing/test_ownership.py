"""Whose a pod is: by who controls it, whatever its labels say."""

import pytest

from legato_operator.cluster import Ref
from legato_operator.observing import ownership
from legato_protocol import names

DEMO = Ref(names.INFERENCE_SERVICE, "default", "demo")
CREATED = "2026-01-01T00:00:00Z"


def _owner(kind, name, uid, controller=True):
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": controller}


def _object(kind, name, uid, *owners):
    return {"kind": kind, "metadata": {"name": name, "namespace": "default", "uid": uid, "ownerReferences": owners}}


SERVICE = _owner(names.INFERENCE_SERVICE, "demo", "service")
OBJECTS = (
    _object(names.WORKER_POOL, "demo-decode", "pool", SERVICE),
    _object(names.WORKER_POOL, "demo-prefill", "theirs", _owner(names.INFERENCE_SERVICE, "demo", "another")),
    _object("Deployment", "demo-gateway", "deployment", SERVICE),
    _object("Deployment", "web", "web", _owner("App", "web", "app")),
    _object("ReplicaSet", "demo-gateway-1", "set", _owner("Deployment", "demo-gateway", "deployment")),
    _object("ReplicaSet", "web-1", "web-set", _owner("Deployment", "web", "web")),
)


def _read(role, *owners, objects=OBJECTS):
    pod = _object("Pod", "it", "pod", *owners)
    pod["metadata"] |= {"labels": {names.LABEL_ROLE: role}, "creationTimestamp": CREATED}
    pod |= {"spec": {"containers": [{"ports": [{"name": "control", "containerPort": 8082}]}]}}
    pod["status"] = {"podIP": "10.0.0.1"}
    mine, others = ownership.read(DEMO, "service", [pod], objects, 0.0)
    return [each.address for each in mine], set(others)


@pytest.mark.parametrize(
    ("role", "owner"),
    [
        ("decode", _owner(names.WORKER_POOL, "demo-decode", "pool")),
        ("gateway", _owner("ReplicaSet", "demo-gateway-1", "set")),
        ("gateway", SERVICE),
    ],
)
def test_pods_of_its_pools_and_of_its_gateway_are_the_service_s(role, owner):
    assert _read(role, owner) == (["10.0.0.1:8082"], set())


@pytest.mark.parametrize(
    "owners",
    [
        (),
        (_owner(names.WORKER_POOL, "demo-decode", "pool", controller=False),),
        (_owner(names.WORKER_POOL, "other-decode", "gone"),),
        (_owner(names.WORKER_POOL, "demo-prefill", "theirs"),),
        (_owner("ReplicaSet", "web-1", "web-set"),),
        (_owner("ReplicaSet", "demo-gateway-1", "gone"),),
        (_owner(names.INFERENCE_SERVICE, "demo", "another"),),
    ],
)
def test_labels_alone_make_no_pod_the_service_s(owners):
    assert _read("decode", *owners) == ([], {"it"})


def test_label_that_names_no_role_makes_it_nobody_s():
    assert _read("other", _owner(names.WORKER_POOL, "demo-decode", "pool")) == ([], {"it"})


def test_pods_of_a_pool_that_was_deleted_are_counted_and_not_spoken_to():
    assert _read("decode", _owner(names.WORKER_POOL, "demo-decode", "gone")) == ([""], set())


@pytest.mark.parametrize(
    ("owner", "mine"),
    [
        (_owner("ReplicaSet", "demo-gateway-1", "gone"), True),
        (_owner("ReplicaSet", "demo-gateway-2", "left"), True),
        (_owner("ReplicaSet", "demo-gateways-1", "gone"), False),
        (_owner("ReplicaSet", "demo-gateway", "gone"), False),
        (_owner("StatefulSet", "demo-gateway-1", "gone"), False),
        (_owner("ReplicaSet", "demo-gateway-1", "gone", controller=False), False),
    ],
)
def test_gateways_whose_deployment_was_deleted_are_counted_and_not_spoken_to(owner, mine):
    """It goes at once, its ReplicaSet a moment later, and streams end in their pods."""
    left = _object("ReplicaSet", "demo-gateway-2", "left", _owner("Deployment", "demo-gateway", "gone"))
    expected = ([""], set()) if mine else ([], {"it"})
    assert _read("gateway", owner, objects=(*OBJECTS, left)) == expected
