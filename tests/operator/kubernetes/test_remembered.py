"""What was read once is not asked for again until it changes, and nobody reads what was before his own write."""

import asyncio
import itertools

import pytest

from legato_operator.cluster import Ref
from legato_operator.errors import Conflict, ObjectNotFound
from legato_operator.kubernetes.remembered import Remembered
from legato_operator.local.store import Store

REF = Ref("ConfigMap", "default", "a")
MINE = {"of": "me"}


class Counting(Store):
    """Counts reads, and can hold them up."""

    def __init__(self):
        ticks = itertools.count()
        super().__init__(lambda: f"2026-01-01T00:00:{next(ticks):02}Z")
        self.reads = 0
        self.hold = None

    async def get(self, ref):
        self.reads += 1
        return await super().get(ref)

    async def list(self, kind, namespace=None, labels=None):
        self.reads += 1
        found = await super().list(kind, namespace, labels)
        if self.hold is not None:
            await self.hold.wait()
        return found


def _item(name="a", x="1", labels=MINE):
    metadata = {"name": name, "namespace": "default", "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": x}}


def _run(check, watched=("ConfigMap",), labelled=()):
    async def run():
        store = Counting()
        remembered = Remembered(store, watched, labelled)
        remembered.trust(True)
        await store.apply(_item(), "one")
        await check(store, remembered)

    asyncio.run(run())


async def _names(remembered):
    return {item["metadata"]["name"] for item in (await remembered.list("ConfigMap", "default", MINE)).items}


async def _value(remembered):
    return (await remembered.get(REF))["data"]["x"]


def test_second_read_costs_nothing():
    async def check(store, remembered):
        for _ in range(3):
            assert await _names(remembered) == {"a"}
            assert await _value(remembered) == "1"
        assert store.reads == 2

    _run(check)


def test_what_is_not_watched_is_always_asked_for():
    async def check(store, remembered):
        for _ in range(3):
            await remembered.list("ConfigMap", "default", MINE)
        assert store.reads == 3

    _run(check, watched=("Pod",))


def test_object_of_which_no_watch_would_tell_is_always_asked_for():
    """Somebody else's in the way of a service's own carries no label of ours: its end would never be known."""

    async def check(store, remembered):
        await store.apply(_item(labels={}), "one")
        assert await _value(remembered) == "1"
        await store.delete(REF)
        with pytest.raises(ObjectNotFound):
            await remembered.get(REF)
        await store.apply(_item("b"), "one")
        assert [await _names(remembered) for _ in range(2)] == [{"b"}, {"b"}]
        assert store.reads == 3

    _run(check, labelled=("ConfigMap",))


def test_nothing_is_kept_while_watches_may_miss_something():
    async def check(store, remembered):
        await _names(remembered)
        remembered.trust(False)
        await store.apply(_item("b"), "one")
        assert await _names(remembered) == {"a", "b"}
        await store.apply(_item("c"), "one")
        assert await _names(remembered) == {"a", "b", "c"}

    _run(check)


def test_own_writes_are_read():
    async def check(_store, remembered):
        assert (await _names(remembered), await _value(remembered)) == ({"a"}, "1")
        await remembered.apply(_item("b"), "one")
        await remembered.apply(_item(x="2"), "one")
        assert (await _names(remembered), await _value(remembered)) == ({"a", "b"}, "2")
        await remembered.patch_status(REF, {"seen": 1})
        assert (await remembered.get(REF))["status"] == {"seen": 1}
        await remembered.delete(REF)
        assert await _names(remembered) == {"b"}
        with pytest.raises(ObjectNotFound):
            await remembered.get(REF)

    _run(check)


def test_write_that_is_refused_makes_its_object_be_read_anew():
    """Whoever was refused may have read something old."""

    async def check(store, remembered):
        old = (await remembered.get(REF))["metadata"]["uid"]
        await store.delete(REF)
        await store.apply(_item(x="2"), "one")
        with pytest.raises(Conflict):
            await remembered.delete(REF, old)
        assert await _value(remembered) == "2"

    _run(check)


def test_changes_that_a_watch_tells_of_are_read():
    async def check(store, remembered):
        assert (await _names(remembered), await _value(remembered)) == ({"a"}, "1")
        remembered.changed(await store.apply(_item(x="2"), "one"))
        assert await _value(remembered) == "2"
        remembered.changed(await store.apply(_item("b"), "one"))
        assert await _names(remembered) == {"a", "b"}
        remembered.changed(await store.apply(_item("b", labels={}), "one"))
        assert await _names(remembered) == {"a"}

    _run(check)


def test_change_during_a_read_is_read_by_the_next():
    async def check(store, remembered):
        store.hold = asyncio.Event()
        reading = asyncio.create_task(_names(remembered))
        await asyncio.sleep(0)
        remembered.changed(await store.apply(_item("b"), "one"))
        store.hold.set()
        assert await reading == {"a"}
        assert await _names(remembered) == {"a", "b"}

    _run(check)


def test_changes_of_others_cost_nothing():
    async def check(store, remembered):
        await _names(remembered)
        remembered.changed(await store.apply(_item("b", labels={"of": "you"}), "one"))
        before = store.reads
        assert await _names(remembered) == {"a"}
        assert store.reads == before

    _run(check)


def test_nothing_is_left_of_what_is_gone():
    async def check(store, remembered):
        await _names(remembered)
        await _value(remembered)
        gone = await store.get(REF)
        await store.delete(REF)
        remembered.changed(gone)
        assert await _names(remembered) == set()
        with pytest.raises(ObjectNotFound):
            await _value(remembered)
        assert not remembered._objects
        assert not remembered._listings

    _run(check)
