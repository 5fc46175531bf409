"""Whole rollouts, planned by the operator in a world where pods come up, fail and go in any order.

All that the operator knows is in that world, and a pass may break off after any of its actions: each one is a restart.
"""

import dataclasses
import functools

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_operator.api import conditions, parsing
from legato_operator.manifests import placement
from legato_operator.observing.observed import Observed, Pod, WorkerState
from legato_operator.planning.actions import Apply, Delete, DrainWorker, PatchStatus
from legato_operator.planning.plan import plan
from legato_protocol import durations

PLACEMENT = placement.local(("legato",))
POOLS = ("prefill", "decode")
GOOD, OTHER, BROKEN = 512, 256, 333


@functools.cache
def _service(chunk, surge, unavailable, rollback):
    item = {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "demo"},
        "spec": {
            "model": {"source": {"builtin": "smollm2-135m-instruct"}},
            "engine": {"chunkTokens": chunk},
            "gateway": {"defaultDeadline": f"{chunk}s"},
            "scaling": {"mode": "External"},
            "rollout": {"maxSurge": surge, "maxUnavailable": unavailable, "autoRollback": rollback},
        },
    }
    return parsing.parse(yaml.safe_dump(item))


class World:
    """What a cluster would hold of one service. `broken` are the pools whose workers fail with the broken setting."""

    def __init__(self, targets, bounds, rollback=False, broken=POOLS):
        self.targets = dict(zip(POOLS, targets, strict=True))
        self.surge, self.unavailable = bounds
        self.broken = broken
        self._rollback = rollback
        self.pods, self._objects, self.status, self._chunks, self._made = {}, {}, {}, {}, 0
        self.edit(GOOD)

    def edit(self, chunk):
        self.chunk = chunk
        self._service = _service(chunk, self.surge, self.unavailable, self._rollback)

    def scale(self, pool, replicas):
        self.targets[pool] = replicas

    def look(self, broken_off=None):
        """A pass of the operator; of `broken_off`, only so many actions of it happen."""
        for (kind, _), item in self._objects.items():
            if kind == "WorkerPool":
                item["spec"]["replicas"] = self.targets[item["spec"]["role"]]
        made = plan(self._observed(), PLACEMENT)
        actions = [action for phase in made.phases for action in phase.actions]
        for action in actions[:broken_off]:
            self._take(action)
        if broken_off is None or broken_off > len(actions):
            self.status = made.status
        return made

    def staying(self, pool):
        return [pod for pod in self.pods.values() if pod.pool == pool and not pod.on_its_way_out]

    def ready(self, pool):
        return [pod for pod in self.staying(pool) if pod.ready]

    def chunks(self, pool):
        """The settings of ready pods that stay, by which revisions are told apart; a gateway's is another one."""
        return {self._chunks[pod.name] for pod in self.ready(pool)}

    def existing(self, pool):
        return sum(pod.pool == pool for pod in self.pods.values())

    def starting(self):
        return [pod for pod in self.pods.values() if not pod.ready and not pod.leaving and not pod.blocked]

    def come_up(self, pod):
        """Or fail."""
        if pod.pool in self.broken and self._chunks[pod.name] == BROKEN:
            self.pods[pod.name] = dataclasses.replace(pod, blocked="ImagePullBackOff")
        else:
            state = WorkerState(0, False, "ucx:tcp")
            self.pods[pod.name] = dataclasses.replace(pod, ready=True, address="127.0.0.1:1", state=state)

    def crash(self, pod):
        self.pods[pod.name] = dataclasses.replace(pod, ready=False, address="", state=None)

    def going(self):
        return [pod for pod in self.pods.values() if pod.leaving]

    def go(self, pod):
        del self.pods[pod.name]

    def settle(self):
        """What comes up comes up and what leaves leaves, until nothing changes any more."""
        for _ in range(100):
            before = (dict(self.pods), self.status)
            self.look()
            for pod in self.going():
                self.go(pod)
            for pod in self.starting():
                self.come_up(pod)
            if before == (self.pods, self.status):
                return
        raise AssertionError(f"no end: {sorted(self.pods)}")

    def progressing(self):
        found = conditions.find(self.status, "Progressing")
        return found["status"], found["reason"]

    def _observed(self):
        pods = tuple(sorted(self.pods.values(), key=lambda pod: pod.created))
        objects = tuple(self._objects.values())
        return Observed(
            self._service, "uid", 1, self.status, False, objects, pods, True, 1000.0, "2026-01-01T00:00:00Z"
        )

    def _take(self, action):
        match action:
            case Apply(item, manager, _):
                self._apply(item, manager)
            case DrainWorker(name, _):
                pod = self.pods[name]
                self.pods[name] = dataclasses.replace(pod, state=dataclasses.replace(pod.state, draining=True))
            case Delete(ref, _) if ref.kind == "Pod":
                self.pods[ref.name] = dataclasses.replace(self.pods[ref.name], leaving=True, ready=False)
            case Delete(ref, _):
                del self._objects[ref.kind, ref.name]
            case PatchStatus(ref, status, _):
                self._objects[ref.kind, ref.name]["status"] = dict(status)

    def _apply(self, item, manager):
        kind, name = item["kind"], item["metadata"]["name"]
        if kind != "Pod" and manager == "legato-operator":
            metadata = {**item["metadata"], "uid": f"uid-{name}", "generation": 1}
            self._objects[kind, name] = {**item, "metadata": metadata, "spec": dict(item.get("spec", {}))}
        elif manager == "legato-drain":
            self.pods[name] = dataclasses.replace(self.pods[name], draining_since=1000.0)
        elif kind == "Pod":
            assert name not in self.pods
            self._made += 1
            labels, command = item["metadata"]["labels"], item["spec"]["containers"][0]["command"]
            pool, revision = labels["serving.legato.dev/role"], labels["serving.legato.dev/pod-revision"]
            self.pods[name] = Pod(name, f"uid-{self._made}", pool, revision, f"{self._made:06}", False, False)
            flag, read = ("--chunk-tokens", int) if pool in POOLS else ("--default-deadline", durations.parse)
            self._chunks[name] = int(read(command[command.index(flag) + 1]))


def _serving(*given, **more):
    """A world in which the first revision is whole."""
    world = World(*given, **more)
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    return world


def _checked_look(world, broken_off):
    """A pass: it keeps the bounds of every pool, and takes no pair of pools apart that can serve together."""
    before = {pool: (world.existing(pool), len(world.ready(pool))) for pool in POOLS}
    paired = world.chunks("prefill") & world.chunks("decode")
    world.look(broken_off)
    for pool, (existing, ready) in before.items():
        target = world.targets[pool]
        assert world.existing(pool) <= max(existing, target + world.surge)
        assert len(world.ready(pool)) >= min(ready, target - world.unavailable)
    if world.surge and paired:
        assert world.chunks("prefill") & world.chunks("decode")


def _disturb(world, data):
    """Something happens to a pod, or to the desired replicas."""
    events = [(world.come_up, pod) for pod in world.starting()] + [(world.go, pod) for pod in world.going()]
    events += [(world.crash, pod) for pool in POOLS for pod in world.ready(pool)[:1]]
    happen, about = data.draw(st.sampled_from(events)) if events else (None, None)
    if happen is not None:
        happen(about)
    if data.draw(st.integers(0, 9)) == 0:
        world.scale(data.draw(st.sampled_from(POOLS)), data.draw(st.integers(1, 3)))


targets = st.tuples(st.integers(1, 3), st.integers(1, 3))
bounds = st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(any)
broken = st.sampled_from([("prefill",), ("decode",), POOLS])
lengths = st.integers(0, 25)
broken_off = st.one_of(st.none(), st.integers(0, 4))


@settings(deadline=None, max_examples=30)
@given(targets=targets, bounds=bounds, rollback=st.booleans(), length=lengths, data=st.data())
def test_good_revision_always_takes_over(targets, bounds, rollback, length, data):
    world = _serving(targets, bounds, rollback)
    world.edit(OTHER)
    for _ in range(length):
        _checked_look(world, data.draw(broken_off))
        _disturb(world, data)
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    assert world.chunks("gateway") == {OTHER}
    for pool in POOLS:
        assert len(world.ready(pool)) == world.existing(pool) == world.targets[pool]
        assert world.chunks(pool) == {OTHER}


@settings(deadline=None, max_examples=30)
@given(targets=targets, bounds=bounds, broken=broken, length=lengths, data=st.data())
def test_broken_revision_stops_and_the_old_one_stays(targets, bounds, broken, length, data):
    world = _serving(targets, bounds, broken=broken)
    world.edit(BROKEN)
    for _ in range(length):
        _checked_look(world, data.draw(broken_off))
        _disturb(world, data)
    world.settle()
    assert world.progressing() == ("False", conditions.ROLLOUT_FAILED)
    assert world.chunks("gateway") == {GOOD}
    for pool in POOLS:
        assert len(world.ready(pool)) >= world.targets[pool] - world.unavailable
    made = world.look()
    assert (made.phases, made.requeue_after) == ((), PLACEMENT.resync_after)


@settings(deadline=None, max_examples=30)
@given(targets=targets, bounds=bounds, broken=broken, length=lengths, data=st.data())
def test_broken_revision_is_taken_back(targets, bounds, broken, length, data):
    world = _serving(targets, bounds, True, broken)
    world.edit(BROKEN)
    for _ in range(length):
        _checked_look(world, data.draw(broken_off))
        _disturb(world, data)
    world.settle()
    assert world.progressing() == ("False", conditions.ROLLOUT_FAILED)
    assert world.chunks("gateway") == {GOOD}
    for pool in POOLS:
        assert len(world.ready(pool)) == world.existing(pool) == world.targets[pool]
        assert world.chunks(pool) == {GOOD}


@settings(deadline=None, max_examples=30)
@given(
    targets=targets, bounds=bounds, rollback=st.booleans(), broken=broken,
    chunks=st.permutations([GOOD, OTHER, BROKEN]), length=lengths, data=st.data(),
)  # fmt: skip
def test_edits_in_the_midst_of_a_rollout_end_where_the_last_says(
    targets, bounds, rollback, broken, chunks, length, data
):
    """Whether the one before was good, failed or had not shown."""
    world = _serving(targets, bounds, rollback, broken)
    for chunk in (*chunks, OTHER):
        world.edit(chunk)
        for _ in range(length // 3):
            world.look(data.draw(broken_off))
            _disturb(world, data)
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)
    assert {chunk for pool in POOLS for chunk in world.chunks(pool)} == {OTHER}


@pytest.mark.parametrize("chunk", [OTHER, GOOD])
@pytest.mark.parametrize("bounds", [(0, 1), (1, 0)])
def test_mended_manifest_deletes_failed_workers_at_once(chunk, bounds):
    """Also where an old worker was lost: what never came up makes up for nothing."""
    world = _serving((2, 2), bounds)
    world.edit(BROKEN)
    world.settle()
    failed = {pod.name for pod in world.pods.values() if pod.blocked}
    world.go(world.ready("decode")[0])
    world.edit(chunk)
    world.look()
    assert {pod.name for pod in world.going()} >= failed
    assert failed
    world.settle()
    assert world.progressing() == ("False", conditions.UP_TO_DATE)


def test_without_surge_prefill_goes_first_and_decode_when_it_is_there():
    """Decode workers prefill themselves meanwhile; a revision that fails in prefill costs no decode worker."""
    world = _serving((1, 1), (0, 1))
    world.edit(OTHER)
    while world.chunks("prefill") != {OTHER}:
        assert world.chunks("decode") == {GOOD}
        world.look()
        for pod in world.going():
            world.go(pod)
        for pod in world.starting():
            world.come_up(pod)
    world.settle()
    assert world.chunks("decode") == {OTHER}


def test_pool_that_fails_holds_the_other_back():
    """Prefill workers of the new revision would find nobody to hand over to."""
    world = _serving((3, 3), (1, 0), broken=("decode",))
    world.edit(BROKEN)
    world.settle()
    for pool in POOLS:
        assert sum(pod.ready for pod in world.staying(pool)) >= 3
    assert GOOD in world.chunks("prefill") & world.chunks("decode")
