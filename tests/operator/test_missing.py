"""Problems of a manifest that only the cluster knows have a reason each, and serving pods are left alone meanwhile."""

import dataclasses

import pytest
from planned import actions, condition, observed, pod

from legato_operator import recorder
from legato_operator.api import parsing, references
from legato_operator.cluster import Ref
from legato_operator.errors import Forbidden, ObjectNotFound
from legato_operator.manifests import common, placement
from legato_operator.manifests.pods import worker
from legato_operator.observing import observe
from legato_operator.planning.actions import Apply
from legato_operator.planning.plan import RECHECK_MISSING_AFTER, plan

PLACEMENT = placement.kubernetes(placement.Containers("engine:1", "gateway:1"))
CLAIM = {"source": {"pvc": {"claim": "weights"}}}
MISSING = (("spec.model.source.pvc.claim", "PersistentVolumeClaim weights not found"),)
TOLD = "spec.model.source.pvc.claim: PersistentVolumeClaim weights not found"


def _pod(pool, **changes):
    return pod(f"demo-{pool}-0", pool, **{"revision": "old", **changes})


def _condition(made, kind):
    found = condition(made, kind)
    return found["status"], found["reason"], found["message"]


def test_missing_claim_is_told_and_no_pod_starts(build):
    made = plan(observed(build(model=CLAIM), missing=MISSING), PLACEMENT)
    assert _condition(made, "Progressing") == ("False", "NotFound", TOLD)
    assert _condition(made, "Ready") == ("False", "NotFound", TOLD)
    assert not {action.item["kind"] for action in actions(made, Apply)} & {"Pod", "Deployment"}
    assert made.requeue_after == RECHECK_MISSING_AFTER


@pytest.mark.parametrize(
    ("state", "reason", "progressing"),
    [
        ({"downloading": True, "message": "downloading its model"}, "Downloading", ("True", "RollingOut")),
        ({"unschedulable": True, "message": "0/2 nodes: no TPU"}, "Unschedulable", ("True", "Unschedulable")),
    ],
)
def test_reason_of_a_pod_that_is_not_ready_is_one_of_its_own(build, state, reason, progressing):
    late = _pod("decode", revision="r", ready=False, state=None, **state)
    made = plan(observed(build(), pods=[_pod("prefill"), late]), PLACEMENT)
    assert _condition(made, "DecodeReady") == ("False", reason, f"demo-decode-0: {state['message']}")
    assert _condition(made, "Ready")[1] == reason
    assert _condition(made, "Progressing")[:2] == progressing


def test_no_room_for_one_more_worker_is_reported_and_the_other_pool_goes_on(build):
    revision = common.revision_of(worker.template(parsing.read_service(build()), "decode", PLACEMENT))
    homeless = {"ready": False, "state": None, "unschedulable": True, "message": "0/2 nodes: no nvidia.com/gpu"}
    one_more = dataclasses.replace(_pod("decode", revision=revision, **homeless), name="demo-decode-1")
    made = plan(observed(build(), pods=[_pod("decode", revision=revision), one_more]), PLACEMENT)
    reason = "demo-decode-1: 0/2 nodes: no nvidia.com/gpu"
    assert _condition(made, "DecodeReady")[:2] == ("True", "AllReady")
    assert _condition(made, "Progressing") == ("True", "CapacityUnavailable", reason)


LOST = {"ready": False, "state": None, "node": "node-1"}
SILENT = LOST | {"unseen_since": "2026-01-01T00:00:00Z"}
EVICTED = {"leaving": True, "node": "node-1", "disrupted": "EvictionByEvictionAPI: evicting"}
SINCE = "not seen since 2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("state", "decode", "progressing"),
    [
        (
            LOST | {"restarts": 2, "ended": "worker exited with code 137", "message": "CrashLoopBackOff"},
            ("Starting", "demo-decode-0: CrashLoopBackOff"),
            "demo-decode-0 on node-1: worker exited with code 137 (2 restarts)",
        ),
        (SILENT, ("NodeUnreachable", f"1 of 1 pods {SINCE}"), f"demo-decode-0 on node-1: {SINCE}"),
        (
            EVICTED,
            ("NoReadyWorker", "demo-decode-0: leaving, and no other pod has been started yet"),
            "demo-decode-0 on node-1: EvictionByEvictionAPI: evicting",
        ),
        (
            LOST | {"failed": True, "disrupted": "Evicted: low on memory"},
            ("Starting", "demo-decode-0: no status yet"),
            "demo-decode-0 on node-1: Evicted: low on memory",
        ),
    ],
)
def test_lost_worker_is_named_with_its_node_and_cause(build, state, decode, progressing):
    revision = common.revision_of(worker.template(parsing.read_service(build()), "decode", PLACEMENT))
    made = plan(observed(build(), pods=[_pod("prefill"), _pod("decode", revision=revision, **state)]), PLACEMENT)
    assert _condition(made, "DecodeReady") == ("False", *decode)
    status, reason, message = _condition(made, "Progressing")
    assert (status, reason) == ("True", "Disrupted")
    assert message.endswith(progressing)
    assert "decode 0 of 1" in message


class Cluster:
    """Answers for one object."""

    def __init__(self, answer):
        self.answer = answer

    async def get(self, ref):
        assert ref == Ref("Secret", "default", "hub")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (ObjectNotFound("404"), "Secret hub not found"),
        ({"data": {"password": "eA=="}}, "Secret hub has no key token"),
        ({}, "Secret hub has no key token"),
        ({"data": {"token": "eA=="}}, None),
        (Forbidden("403"), None),
    ],
)
async def test_secret_is_looked_at_as_far_as_that_is_allowed(answer, told):
    needed = references.Reference("spec.x", "Secret", "hub", "token")
    found = await observe.find_problem(Cluster(answer), "default", needed)
    assert found == (("spec.x", told) if told else None)


class Notes:
    def __init__(self):
        self.events = []

    async def record(self, about, warning, reason, note):
        self.events.append((warning, reason))


@pytest.mark.parametrize(
    ("kind", "before", "status", "reason", "events"),
    [
        # People are warned of what they have to mend.
        ("Progressing", "Unknown", "False", "NotFound", [(True, "NotFound")]),
        ("Progressing", "Unknown", "True", "Unschedulable", [(True, "Unschedulable")]),
        ("Progressing", "Unknown", "True", "CapacityUnavailable", [(True, "CapacityUnavailable")]),
        ("Progressing", "Unknown", "False", "Starting", [(False, "Starting")]),
        ("Progressing", "Unknown", "True", "Scaling", [(False, "Scaling")]),
        # When a service begins, only problems are reported.
        ("Ready", None, "False", "NotFound", [(True, "NotFound")]),
        ("Ready", None, "False", "Starting", []),
        # Steps on the way are no news.
        ("Ready", "NoReadyWorker", "False", "Starting", []),
        ("Ready", "NoReadyWorker", "True", "Starting", [(False, "Starting")]),
        # A service that was ready and is not is a problem whatever the reason, unless its end was asked for.
        ("Ready", "True", "False", "Starting", [(True, "Starting")]),
        ("Ready", "True", "False", "Deleting", [(False, "Deleting")]),
        ("DecodeReady", "True", "False", "NoReadyWorker", [(False, "NoReadyWorker")]),
        # Each crash is reported.
        ("Progressing", "Disrupted", "True", "Disrupted", [(True, "Disrupted")]),
    ],
)
async def test_event_of_a_changed_condition(kind, before, status, reason, events):
    notes = Notes()
    was_status = before if before in ("Unknown", "True") else str(before == "Disrupted")
    was = {"type": kind, "status": was_status, "reason": before, "message": ""}
    known = {"status": {"conditions": [was | {"lastTransitionTime": "now"}]}} if before else {}
    await recorder.record_changes(notes, known, [{"type": kind, "status": status, "reason": reason, "message": "why"}])
    assert notes.events == events
