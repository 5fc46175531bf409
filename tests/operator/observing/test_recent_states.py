"""A worker's last state counts for a minute of silence; then its silence counts."""

import dataclasses

import pytest
from planned import pod

from legato_operator.api import parsing
from legato_operator.cluster import ObjectList, Ref
from legato_operator.errors import ObjectNotFound
from legato_operator.observing.observe import Observer
from legato_operator.observing.observed import Accepted, WorkerState
from legato_operator.observing.recent_states import KEPT, RecentStates
from legato_operator.observing.route_hosts import NullRouteHosts

DEMO = Ref("InferenceService", "default", "demo")
UP, OTHER = WorkerState(0, False, "ucx:tcp"), WorkerState(0, False, "")
DOWN = WorkerState(0, False, "", core_runs=False)


@pytest.mark.parametrize(
    ("passes", "recent"),
    [
        ([(0, UP)], UP),
        ([(0, UP), (600, None)], UP),
        ([(0, UP), (600, DOWN), (600 + KEPT - 1, None)], UP),
        ([(0, UP), (600, None), (600 + KEPT, DOWN)], None),
        ([(0, UP), (1, None), (KEPT, OTHER), (KEPT + 2, None)], OTHER),
        ([(0, UP), (1, "gone"), (2, None)], None),
        ([(0, UP), (1, "forgotten"), (2, None)], None),
        ([(0, None)], None),
        ([(0, DOWN)], None),
    ],
)
def test_the_last_state_of_a_running_core_counts_for_a_minute_of_silence(passes, recent):
    states, worker = RecentStates(), pod("d0", "decode")
    for now, state in passes:
        if state == "forgotten":
            states.forget(DEMO)
            continue
        asked = [] if state == "gone" else [dataclasses.replace(worker, state=state)]
        made = states.attach(DEMO, asked, now)
    assert made[0].recent_state == recent


class World:
    """A cluster with one worker, which answers only once, and its time."""

    def __init__(self):
        owner = {"controller": True, "kind": "WorkerPool", "name": "demo-decode", "uid": "p"}
        mine = {"serving.legato.dev/service": "demo", "serving.legato.dev/role": "decode"}
        born = {"namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
        service = {"controller": True, "kind": "InferenceService", "name": "demo", "uid": "u"}
        pool = {"name": "demo-decode", "uid": "p", "labels": mine, "ownerReferences": [service], **born}
        worker = {"name": "d0", "uid": "d", "labels": mine, "ownerReferences": [owner], **born}
        ports = [{"name": "control", "containerPort": 1}]
        self.items = {
            "WorkerPool": [{"kind": "WorkerPool", "metadata": pool, "spec": {"role": "decode"}}],
            "Pod": [
                {
                    "kind": "Pod",
                    "metadata": worker,
                    "spec": {"containers": [{"ports": ports}]},
                    "status": {"podIP": "10.0.0.1"},
                }
            ],
        }
        self.answers = [UP, None, None]
        self.time = 1e9

    async def state(self, address, tokens, tls=None):
        return self.answers.pop(0)

    async def get(self, ref):
        raise ObjectNotFound(ref.name)

    async def list(self, kind, namespace=None, labels=None):
        return ObjectList(tuple(self.items.get(kind, ())), 1)

    def now(self):
        self.time += KEPT / 8
        return self.time

    def timestamp(self):
        return "2026-01-01T00:00:00Z"


async def test_an_observer_attaches_them_and_forgets_a_deleted_service(build):
    world, stored = World(), build()
    stored |= {"metadata": {"name": "demo", "namespace": "default", "uid": "u", "generation": 1}}
    accepted = Accepted(parsing.service_from_object(stored), 1, stored["spec"])
    observer = Observer(world, world, world, world, NullRouteHosts())

    async def recent():
        (worker,) = (await observer.observe(stored, accepted)).pods
        return worker.recent_state

    assert [await recent(), await recent()] == [UP, UP]
    observer.forget(DEMO)
    assert await recent() is None
