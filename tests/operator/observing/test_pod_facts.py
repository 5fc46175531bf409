"""Facts that are read out of a pod, as a kubelet and the local cluster report it."""

import pytest

from legato_operator.observing import pod_facts

CREATED, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:00:40Z"
NOW = 1767225600.0 + 60  # a minute later
ROLE = "serving.legato.dev/role"
INIT = "initContainerStatuses"
WORKER = {"name": "worker", "ports": [{"name": "control", "containerPort": 8082}]}


def _pod(status=None, container=WORKER, **metadata):
    labels = {ROLE: "decode", "serving.legato.dev/pod-revision": "r"}
    return {
        "metadata": {"name": "p", "uid": "u", "labels": labels, "creationTimestamp": CREATED, **metadata},
        "spec": {"containers": [container]},
        "status": status or {},
    }


def _containers(*states, kind="containerStatuses"):
    return {kind: [{"name": "worker", **state} for state in states]}


def _waiting(reason, name="worker", message="why", kind="containerStatuses"):
    return _containers({"name": name, "state": {"waiting": {"reason": reason, "message": message}}}, kind=kind)


def _ended(code, when="lastState", kind="containerStatuses", name="worker", **more):
    return _containers({"name": name, when: {"terminated": {"exitCode": code, **more}}}, kind=kind)


def _condition(kind, status, message="", **more):
    return {"conditions": [{"type": kind, "status": status, "message": message, **more}]}


def _downloading(name):
    return _containers({"name": name, "state": {"running": {"startedAt": CREATED}}}, kind=INIT)


def _changed(ready, since, *states):
    return _condition("Ready", ready, lastTransitionTime=since) | _containers(*({"state": state} for state in states))


def _ready_taken(containers="True", **more):
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": LATER, **more}
    return {"conditions": [ready, {"type": "ContainersReady", "status": containers}]}


PENDING = {"phase": "Pending"} | _condition("PodScheduled", "True")
UNREADY = _condition("Ready", "False", "not yet")
BEGUN, RESTARTED = {"running": {"startedAt": CREATED}}, {"running": {"startedAt": LATER}}
TRACEBACK = "Traceback:\n  line 1\nKeyError: 'x'\n"
CRASHED = {"restartCount": 3, "lastState": {"terminated": {"exitCode": 1, "message": TRACEBACK}}}
SIDECAR = {"name": "sidecar", "restartCount": 1, "lastState": {"terminated": {"exitCode": 9}}}


@pytest.mark.parametrize(
    ("fact", "status", "value"),
    [
        # Why it is not ready.
        ("message", _waiting("ImagePullBackOff"), "ImagePullBackOff: why"),
        ("message", _waiting("CrashLoopBackOff", message=""), "CrashLoopBackOff"),
        ("message", _waiting("ErrImagePull", "model", kind=INIT), "ErrImagePull: why"),
        ("message", _waiting("ImagePullBackOff", "sidecar"), ""),
        ("message", _waiting("ContainerCreating") | UNREADY, "not yet"),
        ("message", _downloading("model") | UNREADY, f"downloading its model since {CREATED}"),
        ("message", _downloading("adapter-0123abcd"), f"downloading an adapter since {CREATED}"),
        ("message", _downloading("adapter-of-theirs"), ""),
        ("message", _condition("PodScheduled", "False", "0/3 nodes have a GPU"), "0/3 nodes have a GPU"),
        ("message", _condition("Ready", "True", "fine"), ""),
        ("message", {"phase": "Failed", "message": "evicted: no memory"}, "evicted: no memory"),
        ("message", {}, ""),
        # A model on its way is another matter than one that has come.
        ("downloading", _downloading("model"), True),
        ("downloading", _ended(0, "state", INIT, "model"), False),
        # The exit code of a permanent error is a refusal, also of a container that downloads.
        ("refused", _ended(2, message="no such model"), "no such model"),
        ("refused", _ended(2, message="loading\nno such model\n"), "no such model"),
        ("refused", _ended(2, "state"), "ended with a permanent error"),
        ("refused", _ended(137, message="killed"), ""),
        ("refused", _ended(2, name="sidecar", message="its own"), ""),
        ("refused", _ended(2, kind=INIT, name="model", message="why"), "why"),
        ("refused", _ended(2, kind=INIT, name="adapter-0123abcd", message="why"), "why"),
        ("refused", _ended(2, kind=INIT, name="adapter-x", message="why"), ""),
        # A container that cannot be made blocks its pod.
        ("blocked", _waiting("ErrImagePull"), "ErrImagePull: why"),
        ("blocked", _waiting("InvalidImageName", "sidecar"), "InvalidImageName: why"),
        ("blocked", _waiting("CreateContainerConfigError", kind=INIT), "CreateContainerConfigError: why"),
        ("blocked", _waiting("ContainerCreating"), ""),
        ("blocked", _waiting("CrashLoopBackOff"), ""),
        ("blocked", {}, ""),
        # Since the pod began, or another container ended, or it was ready.
        ("unstarted", PENDING | _waiting("ContainerCreating"), True),
        ("unstarted", PENDING | _waiting("PodInitializing") | _waiting("PodInitializing", "model", kind=INIT), True),
        ("unstarted", PENDING, True),
        ("unstarted", PENDING | _downloading("model"), False),
        ("unstarted", PENDING | _waiting("ErrImagePull"), False),
        ("unstarted", {"phase": "Pending"}, False),
        ("unstarted", PENDING | {"phase": "Running"}, False),
        ("blocked_for", _waiting("ErrImagePull"), 60.0),
        ("blocked_for", _waiting("CrashLoopBackOff"), 0.0),
        ("blocked_for", {}, 0.0),
        ("blocked_for", _waiting("ErrImagePull") | _ended(0, "state", INIT, "model", finishedAt=LATER), 20.0),
        ("blocked_for", _waiting("RunContainerError") | _condition("Ready", "False", lastTransitionTime=LATER), 20.0),
        # Only a name that is none cannot be mended from outside.
        ("doomed", _waiting("InvalidImageName"), True),
        ("doomed", _waiting("ErrImagePull"), False),
        ("doomed", _waiting("x"), False),
        # It was ready if its readiness changed after its processes began.
        ("was_ready", _changed("False", LATER, BEGUN), True),
        ("was_ready", _changed("False", CREATED, RESTARTED), False),  # it has not been ready yet
        ("was_ready", _changed("False", LATER, RESTARTED), False),  # nor since it began anew
        ("was_ready", _changed("False", LATER, BEGUN, {"terminated": {"exitCode": 1}}), False),
        ("was_ready", _changed("False", LATER), False),
        ("was_ready", _changed("True", LATER, BEGUN), False),
        # It waits since it was ready last, or since it is there.
        ("waiting", _condition("Ready", "False", lastTransitionTime="2026-01-01T00:00:50Z"), 10.0),
        ("waiting", _condition("Ready", "False"), 60.0),
        ("waiting", _condition("Ready", "True", lastTransitionTime="2026-01-01T00:00:50Z"), 0.0),
        # Its node's controller took its readiness away, not the kubelet.
        ("unseen_since", _ready_taken(), LATER),
        ("unseen_since", _ready_taken(message="containers with unready status: [worker]"), ""),
        ("unseen_since", _ready_taken("False"), ""),
        ("unseen_since", _condition("Ready", "True"), ""),
        # It was taken away.
        ("disrupted", _condition("DisruptionTarget", "True", "evicting", reason="E"), "E: evicting"),
        ("disrupted", _condition("DisruptionTarget", "False", "evicting"), ""),
        ("disrupted", {"phase": "Failed", "reason": "Evicted", "message": "no memory"}, "Evicted: no memory"),
        ("disrupted", {"phase": "Pending", "reason": "Evicted"}, ""),
        # The control port is announced or fixed.
        ("address", {"podIP": "10.0.0.7"}, "10.0.0.7:8082"),
        ("address", {"podIP": "fd00::7"}, "[fd00::7]:8082"),
        ("address", {}, ""),
        # It ended for good.
        ("failed", {"phase": "Failed"}, True),
        ("failed", {"phase": "Succeeded"}, True),
        ("failed", {"phase": "Running"}, False),
        ("age", {"phase": "Failed"}, 60.0),
        # Restarts of the container that ended most often, whose last line says most: a kubelet keeps a long log.
        ("restarts", _containers(CRASHED, SIDECAR), 3),
        ("ended", _containers(CRASHED, SIDECAR), "worker exited with code 1: KeyError: 'x'"),
        ("ended", _ended(137, reason="OOMKilled"), "worker exited with code 137 (OOMKilled)"),
        ("ended", _ended(1, reason="Error"), "worker exited with code 1"),
        ("ended", _containers({"restartCount": 0}), ""),
    ],
)
def test_fact_is_read_from_the_status(fact, status, value):
    assert getattr(pod_facts.read(_pod(status), NOW), fact) == value


@pytest.mark.parametrize(
    ("fact", "metadata", "value"),
    [
        # It outlives its grace period.
        ("lost", {}, False),
        ("lost", {"deletionTimestamp": CREATED, "deletionGracePeriodSeconds": 5}, True),
        ("lost", {"deletionTimestamp": "2026-01-01T00:00:45Z", "deletionGracePeriodSeconds": 5}, False),
        ("lost", {"deletionTimestamp": CREATED}, False),  # the local cluster's: when it was asked to end
        # A mark that cannot be read counts as old.
        ("draining_since", {"annotations": {"serving.legato.dev/draining-since": "tomorrow"}}, 0.0),
        *(
            ("failures", {"annotations": {"serving.legato.dev/failures": written}}, failures)
            for written, failures in (("3", 3), ("", 0), ("many", 0), ("-1", 0), ("9" * 50, 0))
        ),
    ],
)
def test_fact_is_read_from_metadata(fact, metadata, value):
    assert getattr(pod_facts.read(_pod(**metadata), NOW), fact) == value


def test_control_address_of_a_local_pod_is_announced():
    announced = {"podIP": "127.0.0.1", "ports": {"control": 4711}}
    assert pod_facts.read(_pod(announced, {"name": "worker"}), NOW).address == "127.0.0.1:4711"
