"""`legato describe` says in words what a status has, and leaves out what it has not."""

import pytest
from local_services import DEMO, manifest, operations

from legato_cli import describe, status
from legato_operator.local.store import Store

NOW = "2026-12-01T09:00:00Z"
POD = {
    "name": "chat-decode-1", "pool": "decode", "ready": False, "message": "loading weights", "restarts": 1,
    "leaving": False, "revision": "0123456789", "created": NOW, "node": "node-7", "ports": {},
}  # fmt: skip


def condition(kind, status, reason, message):
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": NOW}


SERVICE = {
    "name": "chat",
    "namespace": "prod",
    "generation": 3,
    "model": "chat",
    "url": "http://chat.prod.svc",
    "generationConfig": "None",
    "conditions": [
        condition("Ready", "False", "Starting", "DecodeReady: 0 of 1"),
        condition("KVTransportReady", "Unknown", "Unknown", ""),
    ],
    "pools": {
        "decode": {
            "replicas": 1, "ready": 0, "desired": 2, "cappedBy": "scaling.gpuBudget", "revision": "b",
            "failedRevision": "b", "failureReason": "WorkerRefused", "failure": "no memory",
        }
    },
    "scaling": {
        "pausedUntil": NOW,
        "pools": {},
        "records": [
            {"pool": "decode", "time": NOW, "current": 1, "wish": 2, "reason": "Blocks", "needed": 2, "cappedBy": ""}
        ],
    },
    "pods": [POD],
    "events": [{"time": NOW, "type": "Warning", "reason": "WorkerRefused", "message": "no memory", "count": 3}],
}  # fmt: skip


def test_every_section_is_in_words():
    assert list(describe.lines(SERVICE)) == [
        "chat in namespace prod, generation 3",
        "  serves chat at http://chat.prod.svc",
        "  sampling defaults are neutral, whatever the model's are",
        "Conditions:",
        f"  Ready is False (Starting) since {NOW}",
        "    DecodeReady: 0 of 1",
        f"  KVTransportReady is Unknown (Unknown) since {NOW}",
        "Pools:",
        "  decode: 0 of 1 ready, 2 desired",
        "    more or fewer were asked for; scaling.gpuBudget does not allow them",
        "    revision b failed (WorkerRefused): no memory",
        "Workers and gateways:",
        f"  chat-decode-1  1 restart  since {NOW}  on node-7  loading weights",
        "Scaling:",
        f"  paused until {NOW}",
        f"  {NOW}  decode 1 -> 2  Blocks: 2 needed",
        "Events:",
        f"  {NOW}  Warning  WorkerRefused  no memory (3 times)",
    ]


def test_a_service_that_nobody_has_looked_at_yet_has_no_empty_sections():
    bare = {"name": "chat", "namespace": "prod", "generation": 1, "conditions": [], "pods": [], "scaling": None}
    assert list(describe.lines(bare | {"events": []})) == ["chat in namespace prod, generation 1"]
    assert list(status.lines(bare))[1:] == ["NAME  READY  RESTARTS  REVISION  STATE"]


@pytest.mark.anyio
async def test_events_that_legato_up_recorded_are_described():
    store = Store(lambda: NOW)
    await store.apply(manifest(), "user")
    running, stored = operations(store), await store.get(DEMO)
    for number in range(150):
        await running.recent.record(stored, number % 2 == 1, "Scaling", f"number {number}")
    events = (await running.answer({"do": "describe"}))["describe"]["events"]
    assert len(events) == 100  # those that are kept
    assert (events[-1]["type"], events[-1]["message"]) == ("Warning", "number 149")
