"""A pod belongs to who controls it, whatever its labels say."""

import pytest

from legato_operator.cluster import Ref
from legato_operator.observing import ownership
from legato_protocol import names

DEMO = Ref(names.INFERENCE_SERVICE, "default", "demo")


def _owner(kind, name, uid):
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": True}


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


POOL = _owner(names.WORKER_POOL, "demo-decode", "pool")
ALSO = SERVICE | {"controller": False}
MINE, OTHERS, UNSPOKEN = (["10.0.0.1:8082"], set()), ([], {"it"}), ([""], set())  # the last: counted and not spoken to
LEFT = _object("ReplicaSet", "demo-gateway-2", "left", _owner("Deployment", "demo-gateway", "gone"))


@pytest.mark.parametrize(
    ("role", "owners", "whose"),
    [
        # Pods of its pools and of its gateway.
        ("decode", [POOL], MINE),
        ("gateway", [_owner("ReplicaSet", "demo-gateway-1", "set")], MINE),
        ("gateway", [SERVICE], MINE),
        # Labels by themselves make no pod the service's, and a label that names no role makes it nobody's.
        ("decode", [], OTHERS),
        ("decode", [POOL | {"controller": False}], OTHERS),
        ("decode", [_owner(names.WORKER_POOL, "other-decode", "gone")], OTHERS),
        ("decode", [_owner(names.WORKER_POOL, "demo-prefill", "theirs")], OTHERS),
        ("decode", [_owner("ReplicaSet", "web-1", "web-set")], OTHERS),
        ("decode", [_owner("ReplicaSet", "demo-gateway-1", "gone")], OTHERS),
        ("decode", [_owner(names.INFERENCE_SERVICE, "demo", "another")], OTHERS),
        ("other", [POOL], OTHERS),
        # Their pool was deleted.
        ("decode", [_owner(names.WORKER_POOL, "demo-decode", "gone")], UNSPOKEN),
        ("decode", [_owner(names.WORKER_POOL, "demo-decode", "gone"), ALSO], MINE),
        ("decode", [ALSO], MINE),
        ("decode", [_owner("ReplicaSet", "web-1", "web-set"), ALSO], OTHERS),
        ("decode", [ALSO | {"uid": "another"}], OTHERS),
        # Their Deployment was deleted: its ReplicaSet goes a moment later, and streams end in their pods.
        ("gateway", [_owner("ReplicaSet", "demo-gateway-1", "gone")], UNSPOKEN),
        ("gateway", [_owner("ReplicaSet", "demo-gateway-2", "left")], UNSPOKEN),
        ("gateway", [_owner("ReplicaSet", "demo-gateways-1", "gone")], OTHERS),
        ("gateway", [_owner("ReplicaSet", "demo-gateway", "gone")], OTHERS),
        ("gateway", [_owner("StatefulSet", "demo-gateway-1", "gone")], OTHERS),
        ("gateway", [_owner("ReplicaSet", "demo-gateway-1", "gone") | {"controller": False}], OTHERS),
    ],
)
def test_pod_belongs_to_who_controls_it(role, owners, whose):
    pod = _object("Pod", "it", "pod", *owners)
    pod["metadata"] |= {"labels": {names.LABEL_ROLE: role}, "creationTimestamp": "2026-01-01T00:00:00Z"}
    pod |= {"spec": {"containers": [{"ports": [{"name": "control", "containerPort": 8082}]}]}}
    pod["status"] = {"podIP": "10.0.0.1"}
    mine, others = ownership.read(DEMO, "service", [pod], (*OBJECTS, LEFT), 0.0)
    assert ([each.address for each in mine], set(others)) == whose
