"""What only the cluster can know of a manifest is told by reason, and nothing that serves is touched meanwhile."""

import dataclasses

import pytest
from planned import actions, condition, observed, pod

from legato_operator import recorder
from legato_operator.api import parsing, references
from legato_operator.cluster import Ref
from legato_operator.errors import Forbidden, ObjectNotFound
from legato_operator.manifests import common, placement, worker
from legato_operator.observing import observe
from legato_operator.planning.actions import Apply, Delete
from legato_operator.planning.plan import RECHECK_MISSING_AFTER, plan

PLACEMENT = placement.kubernetes("engine:1", "gateway:1")
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


def test_what_serves_stays_while_a_new_revision_misses_its_claim(build):
    """Also where a rollout may take workers away."""
    pods = [_pod("prefill"), _pod("decode"), _pod("gateway", revision="")]
    item = build(model=CLAIM, rollout={"maxSurge": 0, "maxUnavailable": 1})
    assert "Pod" in {
        getattr(a, "item", {}).get("kind") for p in plan(observed(item, pods=pods), PLACEMENT).phases for a in p.actions
    }
    made = plan(observed(item, pods=pods, missing=MISSING), PLACEMENT)
    assert _condition(made, "Ready")[:2] == ("True", "AllReady")
    assert _condition(made, "Progressing") == ("False", "NotFound", TOLD)
    assert not {action.item["kind"] for action in actions(made, Apply)} & {"Pod", "Deployment"}
    assert not [action for phase in made.phases for action in phase.actions if isinstance(action, Delete)]


def test_a_model_on_its_way_is_a_reason_of_its_own(build):
    loading = _pod("decode", revision="r", ready=False, state=None, downloading=True, message="downloading its model")
    made = plan(observed(build(), pods=[_pod("prefill"), loading]), PLACEMENT)
    assert _condition(made, "DecodeReady") == ("False", "Downloading", "demo-decode-0: downloading its model")
    assert _condition(made, "Ready")[1] == "Downloading"


def test_pod_that_no_node_takes_is_a_reason_of_its_own(build):
    none = _pod(
        "decode", revision="r", ready=False, state=None, unschedulable=True, message="0/2 nodes: no example.com/tpu"
    )
    made = plan(observed(build(), pods=[_pod("prefill"), none]), PLACEMENT)
    assert _condition(made, "DecodeReady") == ("False", "Unschedulable", "demo-decode-0: 0/2 nodes: no example.com/tpu")
    assert _condition(made, "Ready")[1] == "Unschedulable"
    assert _condition(made, "Progressing") == ("True", "Unschedulable", "demo-decode-0: 0/2 nodes: no example.com/tpu")


def test_no_room_for_one_more_worker_is_told_and_the_other_pool_goes_on(build):
    item = build()
    service = parsing.read_service(item)
    revision = common.revision_of(worker.template(service, "decode", PLACEMENT))
    gone = {"ready": False, "state": None, "unschedulable": True, "message": "0/2 nodes: no nvidia.com/gpu"}
    none = dataclasses.replace(_pod("decode", revision=revision, **gone), name="demo-decode-1")
    pods = [_pod("decode", revision=revision), none]
    made = plan(observed(item, pods=pods), PLACEMENT)
    told = "demo-decode-1: 0/2 nodes: no nvidia.com/gpu"
    assert _condition(made, "DecodeReady")[:2] == ("True", "AllReady")
    assert _condition(made, "Progressing") == ("True", "CapacityUnavailable", told)


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
        self.told = []

    async def record(self, about, warning, reason, note):
        self.told.append((warning, reason))


@pytest.mark.parametrize(
    ("status", "reason", "warning"),
    [
        ("False", "NotFound", True),
        ("True", "Unschedulable", True),
        ("True", "CapacityUnavailable", True),
        ("False", "Starting", False),
        ("True", "Scaling", False),
    ],
)
async def test_people_are_warned_of_what_they_have_to_mend(status, reason, warning):
    notes = Notes()
    news = [{"type": "Progressing", "status": status, "reason": reason, "message": "why"}]
    before = {
        "type": "Progressing",
        "status": "Unknown",
        "reason": "Unknown",
        "message": "",
        "lastTransitionTime": "now",
    }
    await recorder.record_changes(notes, {"status": {"conditions": [before]}}, news)
    assert notes.told == [(warning, reason)]


@pytest.mark.parametrize(("reason", "told"), [("NotFound", [(True, "NotFound")]), ("Starting", [])])
async def test_of_how_a_service_begins_people_are_told_what_is_wrong_alone(reason, told):
    notes = Notes()
    news = [{"type": "Ready", "status": "False", "reason": reason, "message": "why"}]
    await recorder.record_changes(notes, {}, news)
    assert notes.told == told


@pytest.mark.parametrize(("status", "told"), [("False", []), ("True", [(False, "Starting")])])
async def test_steps_on_the_way_are_no_news(status, told):
    notes = Notes()
    before = {"type": "Ready", "status": "False", "reason": "NoReadyWorker", "message": "", "lastTransitionTime": "now"}
    news = [{"type": "Ready", "status": status, "reason": "Starting", "message": "why"}]
    await recorder.record_changes(notes, {"status": {"conditions": [before]}}, news)
    assert notes.told == told
