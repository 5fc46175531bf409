"""What is read out of a pod, as a kubelet and the local cluster tell it."""

import pytest

from legato_operator.observing import pod_facts

CREATED = "2026-01-01T00:00:00Z"
NOW = 1767225600.0 + 60  # a minute later
ROLE = "serving.legato.dev/role"


def _pod(status=None, spec=None, **metadata):
    labels = {ROLE: "decode", "serving.legato.dev/pod-revision": "r"}
    ports = [{"name": "control", "containerPort": 8082}]
    return {
        "metadata": {"name": "p", "uid": "u", "labels": labels, "creationTimestamp": CREATED, **metadata},
        "spec": spec or {"containers": [{"name": "worker", "ports": ports}]},
        "status": status or {},
    }


def _waiting(reason, kind="containerStatuses", name="worker", message="why"):
    return {kind: [{"name": name, "state": {"waiting": {"reason": reason, "message": message}}}]}


def _condition(kind, status, message=""):
    return {"conditions": [{"type": kind, "status": status, "message": message}]}


def _downloading(name):
    return {"initContainerStatuses": [{"name": name, "state": {"running": {"startedAt": CREATED}}}]}


DOWNLOADING = _downloading("model")


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (_waiting("ImagePullBackOff"), "ImagePullBackOff: why"),
        (_waiting("CrashLoopBackOff", message=""), "CrashLoopBackOff"),
        (_waiting("ErrImagePull", kind="initContainerStatuses", name="model"), "ErrImagePull: why"),
        (_waiting("ImagePullBackOff", name="sidecar"), ""),
        (_waiting("ContainerCreating") | _condition("Ready", "False", "not yet"), "not yet"),
        (DOWNLOADING | _condition("Ready", "False", "not yet"), f"downloading its model since {CREATED}"),
        (_downloading("adapter-0123abcd"), f"downloading an adapter since {CREATED}"),
        (_downloading("adapter-of-theirs"), ""),
        (_condition("PodScheduled", "False", "0/3 nodes have a GPU"), "0/3 nodes have a GPU"),
        (_condition("Ready", "True", "fine"), ""),
        ({"phase": "Failed", "message": "evicted: no memory"}, "evicted: no memory"),
        ({}, ""),
    ],
)
def test_message_says_why_a_pod_is_not_ready(status, message):
    assert pod_facts.read(_pod(status), NOW).message == message


@pytest.mark.parametrize(
    ("container", "refused"),
    [
        ({"lastState": {"terminated": {"exitCode": 2, "message": "no such model"}}}, "no such model"),
        ({"lastState": {"terminated": {"exitCode": 2, "message": "loading\nno such model\n"}}}, "no such model"),
        ({"state": {"terminated": {"exitCode": 2}}}, "ended with a permanent error"),
        ({"lastState": {"terminated": {"exitCode": 137, "message": "killed"}}}, ""),
        ({"name": "sidecar", "lastState": {"terminated": {"exitCode": 2, "message": "its own"}}}, ""),
    ],
)
def test_exit_code_of_a_permanent_error_is_a_refusal(container, refused):
    status = {"containerStatuses": [{"name": "worker", **container}]}
    assert pod_facts.read(_pod(status), NOW).refused == refused


@pytest.mark.parametrize(("name", "refused"), [("model", "why"), ("adapter-0123abcd", "why"), ("adapter-x", "")])
def test_so_is_that_of_a_container_that_downloads(name, refused):
    ended = {"lastState": {"terminated": {"exitCode": 2, "message": "why"}}}
    assert pod_facts.read(_pod({"initContainerStatuses": [{"name": name, **ended}]}), NOW).refused == refused


LATER = "2026-01-01T00:00:40Z"


@pytest.mark.parametrize(
    ("status", "seconds"),
    [
        (_waiting("ErrImagePull"), 60.0),
        (_waiting("CrashLoopBackOff"), 0.0),
        ({}, 0.0),
        (
            _waiting("ErrImagePull")
            | {"initContainerStatuses": [{"name": "model", "state": {"terminated": {"finishedAt": LATER}}}]},
            20.0,
        ),
        (
            _waiting("RunContainerError")
            | {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": LATER}]},
            20.0,
        ),
    ],
)
def test_container_is_blocked_since_the_pod_began_or_another_ended_or_it_was_ready(status, seconds):
    assert pod_facts.read(_pod(status), NOW).blocked_for == seconds


@pytest.mark.parametrize(("reason", "doomed"), [("InvalidImageName", True), ("ErrImagePull", False), ("x", False)])
def test_only_a_name_that_is_none_cannot_be_mended_from_outside(reason, doomed):
    assert pod_facts.read(_pod(_waiting(reason)), NOW).doomed is doomed


@pytest.mark.parametrize(
    ("ready", "since", "states", "was"),
    [
        ("False", LATER, [{"running": {"startedAt": CREATED}}], True),
        ("False", CREATED, [{"running": {"startedAt": LATER}}], False),  # it has not been ready yet
        ("False", LATER, [{"running": {"startedAt": LATER}}], False),  # nor since it began anew
        ("False", LATER, [{"running": {"startedAt": CREATED}}, {"terminated": {"exitCode": 1}}], False),
        ("False", LATER, [], False),
        ("True", LATER, [{"running": {"startedAt": CREATED}}], False),
    ],
)
def test_pod_whose_readiness_changed_after_its_processes_began_was_ready(ready, since, states, was):
    told = [{"type": "Ready", "status": ready, "lastTransitionTime": since}]
    containers = [{"name": f"c{number}", "state": state} for number, state in enumerate(states)]
    assert pod_facts.read(_pod({"conditions": told, "containerStatuses": containers}), NOW).was_ready is was


def test_control_address_is_announced_or_fixed():
    fixed, announced = {"podIP": "10.0.0.7"}, {"podIP": "127.0.0.1", "ports": {"control": 4711}}
    assert pod_facts.read(_pod(fixed), NOW).address == "10.0.0.7:8082"
    assert pod_facts.read(_pod(announced, spec={"containers": [{"name": "worker"}]}), NOW).address == "127.0.0.1:4711"
    assert pod_facts.read(_pod({"podIP": "fd00::7"}), NOW).address == "[fd00::7]:8082"
    assert pod_facts.read(_pod({}), NOW).address == ""


@pytest.mark.parametrize(("phase", "failed"), [("Failed", True), ("Succeeded", True), ("Running", False)])
def test_pod_that_ended_for_good_is_told_with_its_age(phase, failed):
    read = pod_facts.read(_pod({"phase": phase}), NOW)
    assert (read.failed, read.age) == (failed, 60.0)


@pytest.mark.parametrize(("written", "failures"), [("3", 3), ("", 0), ("many", 0), ("-1", 0), ("9" * 50, 0)])
def test_failures_before_a_pod_are_written_on_it(written, failures):
    assert pod_facts.read(_pod(annotations={"serving.legato.dev/failures": written}), NOW).failures == failures


@pytest.mark.parametrize(
    ("metadata", "lost"),
    [
        ({}, False),
        ({"deletionTimestamp": CREATED, "deletionGracePeriodSeconds": 5}, True),
        ({"deletionTimestamp": "2026-01-01T00:00:45Z", "deletionGracePeriodSeconds": 5}, False),
        ({"deletionTimestamp": CREATED}, False),  # the local cluster's: when it was asked to end
    ],
)
def test_pod_that_outlives_its_grace_period_is_lost(metadata, lost):
    assert pod_facts.read(_pod(**metadata), NOW).lost is lost


def test_mark_that_cannot_be_read_counts_as_old():
    annotations = {"serving.legato.dev/draining-since": "tomorrow"}
    assert pod_facts.read(_pod(annotations=annotations), NOW).draining_since == 0.0


@pytest.mark.parametrize(("labels", "belongs"), [({ROLE: "decode"}, True), ({ROLE: "other"}, False), ({}, False)])
def test_pods_of_others_do_not_belong(labels, belongs):
    assert pod_facts.belongs(_pod(labels=labels)) is belongs


@pytest.mark.parametrize(
    ("status", "blocked"),
    [
        (_waiting("ErrImagePull"), "ErrImagePull: why"),
        (_waiting("InvalidImageName", name="sidecar"), "InvalidImageName: why"),
        (_waiting("CreateContainerConfigError", kind="initContainerStatuses"), "CreateContainerConfigError: why"),
        (_waiting("ContainerCreating"), ""),
        (_waiting("CrashLoopBackOff"), ""),
        ({}, ""),
    ],
)
def test_container_that_cannot_be_made_blocks_its_pod(status, blocked):
    assert pod_facts.read(_pod(status), NOW).blocked == blocked


def test_restarts_are_those_of_the_container_that_ended_most_often():
    """Its last line says most: what a kubelet keeps of a log is long."""
    ended = {"exitCode": 1, "message": "Traceback:\n  line 1\nKeyError: 'x'\n"}
    containers = [
        {"name": "worker", "restartCount": 3, "lastState": {"terminated": ended}},
        {"name": "sidecar", "restartCount": 1, "lastState": {"terminated": {"exitCode": 9}}},
    ]
    read = pod_facts.read(_pod({"containerStatuses": containers}), NOW)
    assert (read.restarts, read.ended) == (3, "worker exited with code 1: KeyError: 'x'")
    assert pod_facts.read(_pod({"containerStatuses": [{"name": "worker", "restartCount": 0}]}), NOW).ended == ""


@pytest.mark.parametrize(
    ("ready", "seconds"),
    [
        ({"status": "False", "lastTransitionTime": "2026-01-01T00:00:50Z"}, 10.0),
        ({"status": "False"}, 60.0),
        ({"status": "True", "lastTransitionTime": "2026-01-01T00:00:50Z"}, 0.0),
    ],
)
def test_pod_waits_since_it_was_ready_last_or_since_it_is_there(ready, seconds):
    status = {"conditions": [{"type": "Ready", **ready}]}
    assert pod_facts.read(_pod(status), NOW).waiting == seconds


def test_a_model_on_its_way_is_known_from_one_that_has_come():
    come = {"initContainerStatuses": [{"name": "model", "state": {"terminated": {"exitCode": 0}}}]}
    assert pod_facts.read(_pod(DOWNLOADING), NOW).downloading
    assert not pod_facts.read(_pod(come), NOW).downloading
