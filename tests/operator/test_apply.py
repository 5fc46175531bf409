"""Actions that are carried out together, in order, or not started any longer."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from legato_operator.apply import CONCURRENT, Writers, apply
from legato_operator.cluster import Ref
from legato_operator.errors import ClusterError, Conflict, Invalid
from legato_operator.local.store import Store
from legato_operator.planning.actions import Apply, DrainWorker, Phase

NOBODY = SimpleNamespace(service=None, uid="")


class Slow(Store):
    """Every write takes some turns of the loop; keeps which began and ended."""

    def __init__(self):
        ticks = itertools.count()
        super().__init__(lambda: f"2026-01-01T00:00:{next(ticks):02}Z")
        self.steps = []
        self.faults = {}
        self.at_once = self.most = 0

    async def apply(self, item, manager, force=False):
        name = item["metadata"]["name"]
        self.steps.append(("begun", name))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        for _ in range(10):
            await asyncio.sleep(0)
        self.at_once -= 1
        self.steps.append(("ended", name))
        if name in self.faults:
            raise self.faults[name]
        return await super().apply(item, manager, force)


def _item(name, kind="ConfigMap", **metadata):
    made = {"name": name, "namespace": "default", "labels": {"serving.legato.dev/service": "demo"}, **metadata}
    return {"apiVersion": "v1", "kind": kind, "metadata": made}


async def _apply(store, *phases):
    numbered = tuple(Phase(str(number), tuple(actions)) for number, actions in enumerate(phases))
    await apply(Writers(store, None, None), NOBODY, numbered)


async def test_objects_of_a_phase_are_written_together_and_those_of_the_next_after_it():
    store = Slow()
    first, second = [f"a{number}" for number in range(20)], ["b"]
    await _apply(store, [Apply(_item(name)) for name in first], [Apply(_item(name)) for name in second])
    assert store.most == CONCURRENT
    assert store.steps[-2:] == [("begun", "b"), ("ended", "b")]


async def test_actions_about_one_object_and_a_role_and_its_binding_keep_their_order():
    store = Slow()
    await _apply(
        store, [Apply(_item("a")), Apply(_item("r", "Role")), Apply(_item("b", "RoleBinding")), Apply(_item("a"))]
    )
    for one, other in (("a", "a"), ("r", "b")):
        own = [step for step in store.steps if step[1] in (one, other)]
        assert own == [("begun", one), ("ended", one), ("begun", other), ("ended", other)]


async def test_pods_are_made_in_the_order_in_which_they_were_chosen():
    store = Slow()
    pods = [_item(f"p{number}", "Pod") for number in range(9)]
    await _apply(store, [Apply(pod, force=False) for pod in pods])
    assert [name for what, name in store.steps if what == "begun"] == [pod["metadata"]["name"] for pod in pods]
    assert store.most == 1


async def test_a_worker_is_marked_before_it_drains_though_others_are_marked_at_the_same_time():
    store = Slow()
    workers = SimpleNamespace(drain=lambda address, _tokens, _tls: _note(store, address))
    actions = [each for name in "abc" for each in (Apply(_item(name, "Pod")), DrainWorker(name, f"drained {name}"))]
    demo = SimpleNamespace(metadata=SimpleNamespace(namespace="default", name="demo"))
    observed = SimpleNamespace(service=demo, tokens=("token",))
    await apply(Writers(store, workers, None), observed, (Phase("leave", tuple(actions)),))
    order = [what for _, what in store.steps]
    assert all(store.steps.index(("ended", name)) < order.index(f"drained {name}") for name in "abc")
    assert store.most == 3


async def _note(store, what):
    store.steps.append(("ended", what))


async def test_after_a_conflict_nothing_more_is_begun_and_what_was_begun_ends():
    store = Slow()
    store.faults = {"a0": Conflict("another writer")}
    with pytest.raises(Conflict):
        await _apply(store, [Apply(_item(f"a{number}")) for number in range(20)], [Apply(_item("b"))])
    begun = [name for what, name in store.steps if what == "begun"]
    assert len(begun) == CONCURRENT
    assert sorted(begun) == sorted(name for what, name in store.steps if what == "ended")


async def test_what_is_refused_for_good_keeps_nothing_else_from_being_done():
    store = Slow()
    store.faults = {"a0": Invalid("422: never")}
    with pytest.raises(Invalid, match="never"):
        await _apply(store, [Apply(_item(f"a{number}")) for number in range(20)], [Apply(_item("b"))])
    assert ("ended", "b") in store.steps
    assert len(store.steps) == 42


MINE = [{"apiVersion": "v1", "kind": "Owner", "name": "demo", "uid": "1"}]
THEIRS = [{"apiVersion": "v1", "kind": "Owner", "name": "other", "uid": "2"}]


async def _made(item, manager):
    """Applies an object of the operator where this one is, and returns the result."""
    store = Slow()
    await store.apply(item, manager)
    await _apply(store, [Apply(_item("a", ownerReferences=MINE), force=False)])
    return await store.get(Ref("ConfigMap", "default", "a"))


async def test_own_object_that_should_have_been_seen_is_looked_at_again_and_not_written():
    with pytest.raises(Conflict):
        await _made(_item("a", ownerReferences=MINE) | {"data": {"x": "1"}}, "legato-operator")


async def test_own_object_that_lost_its_labels_gets_them_back():
    made = await _made(_item("a", labels={}, ownerReferences=MINE), "legato-operator")
    assert made["metadata"]["labels"] == {"serving.legato.dev/service": "demo"}


@pytest.mark.parametrize("owners", [[], THEIRS])
async def test_somebody_elses_object_is_not_taken(owners):
    with pytest.raises(ClusterError, match="not the service's own") as refusal:
        await _made(_item("a", labels={}, ownerReferences=owners), "user")
    assert not isinstance(refusal.value, Conflict)
