"""Warnings about a pod count while nothing else has begun since, and only for one that does not start."""

import dataclasses

import pytest
from planned import pod

from legato_operator.errors import Forbidden
from legato_operator.local.store import Store
from legato_operator.observing import pod_events

MISSING, ATTACH, PULL = "FailedMount", "FailedAttachVolume", "Pulling"
UNSTARTED = dataclasses.replace(pod("p", "decode", ready=False), unstarted=True, waiting=60.0)


def _event(reason, last, first="10:00:00", note="why", **more):
    made = {"creationTimestamp": f"2026-01-01T{first}Z"}
    times = {"deprecatedFirstTimestamp": f"2026-01-01T{first}Z", "deprecatedLastTimestamp": f"2026-01-01T{last}Z"}
    kind = "Normal" if reason in (PULL, "Scheduled") else "Warning"
    return {"metadata": made, "reason": reason, "type": kind, "note": note, **times, **more}


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ([], ""),
        ([_event("Scheduled", "10:00:00"), _event(MISSING, "10:00:00")], "FailedMount: why"),
        ([_event(MISSING, "10:00:05"), _event(PULL, "10:00:06")], ""),
        ([_event(PULL, "10:00:01"), _event(MISSING, "10:02:00", note="b")], "FailedMount: b"),
        (
            [_event(MISSING, "10:03:00", "10:02:00", "late"), _event(ATTACH, "10:02:00")],
            f"{ATTACH}: why; {MISSING}: late",
        ),
        ([_event(MISSING, "10:00:00", note="mended"), _event(MISSING, "10:09:00", "10:08:00")], "FailedMount: why"),
        ([_event(ATTACH, "10:00:00", series={"lastObservedTime": "2026-01-01T10:01:00.5Z"})], f"{ATTACH}: why"),
        ([_event("NoNote", "10:00:00", note=None)], "NoNote"),
    ],
)
def test_warnings_hold_until_something_else_begins(events, text):
    assert pod_events.warnings(events) == text


@pytest.mark.parametrize(
    ("changes", "blocked"),
    [({}, "FailedMount: why"), ({"unstarted": False}, ""), ({"waiting": 5.0}, ""), ({"leaving": True}, "")],
)
async def test_only_a_pod_that_does_not_start_is_blocked_by_warnings_about_it(changes, blocked):
    store = Store(lambda: "2026-01-01T00:00:00Z")
    for uid in (UNSTARTED.uid, "another"):
        event = _event(MISSING, "10:00:00", note="why" if uid == UNSTARTED.uid else "not this")
        metadata = {"name": uid, "namespace": "default"}
        await store.create({**event, "kind": "Event", "metadata": metadata, "regarding": {"uid": uid}}, "kubelet")
    (found,) = await pod_events.explain_blocked(store, "default", [dataclasses.replace(UNSTARTED, **changes)])
    assert (found.blocked, found.blocked_for) == (blocked, 60.0 if blocked else 0.0)


async def test_an_operator_that_may_not_list_events_goes_on_without_them():
    class Cluster(Store):
        async def list(self, *_, **__):
            raise Forbidden("403: events")

    assert await pod_events.explain_blocked(Cluster(lambda: ""), "default", [UNSTARTED]) == [UNSTARTED]
