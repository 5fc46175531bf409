"""A read costs no call as long as watches can be relied on, and finds one's own writes."""

import asyncio
import itertools

import pytest

from legato_operator.cluster import Ref
from legato_operator.errors import ObjectNotFound
from legato_operator.kubernetes.cache.cluster import CACHED_SECONDS, CachedCluster
from legato_operator.kubernetes.cache.known_objects import WatchedStore
from legato_operator.local.store import Store as LocalStore

MINE = {"serving.legato.dev/service": "demo"}
A, TOKEN = Ref("ConfigMap", "default", "a"), Ref("Secret", "default", "token")


class Server(LocalStore):
    """Counts calls."""

    def __init__(self):
        ticks = itertools.count()
        super().__init__(lambda: f"2026-01-01T00:00:{next(ticks):02}Z")
        self.reads = 0
        self.first = []
        self.hold = None

    async def get(self, ref):
        self.reads += 1
        found = await super().get(ref)
        if self.hold is not None:
            await self.hold.wait()
        return found

    async def list(self, kind, namespace=None, labels=None):
        self.reads += 1
        return await super().list(kind, namespace, labels)

    async def patch_status(self, ref, status, uid=None, first=False):
        self.first.append(first)
        return await super().patch_status(ref, status, uid)

    async def request_deletion(self, ref, uid=None):
        await self.delete(ref, uid)
        return self._objects.get(ref)


def _item(name="a", kind="ConfigMap", labels=MINE, **metadata):
    made = {"name": name, "namespace": "default", "labels": labels, **metadata}
    return {"apiVersion": "v1", "kind": kind, "metadata": made}


def _token(text):
    return _item("token", "Secret") | {"data": {"x": text}}


async def _text(cached):
    return (await cached.get(TOKEN))["data"]["x"]


@pytest.fixture
def trusted():
    return True


@pytest.fixture
def server():
    return Server()


@pytest.fixture
def store(trusted):
    made = WatchedStore(("ConfigMap", "Service"))
    made.trust(trusted)
    return made


@pytest.fixture
def cached(server, store):
    return CachedCluster(server, store, ("ConfigMap",))


async def _names(cached, kind="ConfigMap"):
    return [item["metadata"]["name"] for item in (await cached.list(kind, "default", MINE)).items]


async def test_reads_cost_nothing(server, cached):
    await cached.create(_item("a"), "one")
    await cached.create(_item("s", "Service"), "one")
    assert await _names(cached) == ["a"]
    assert (await cached.get(Ref("Service", "default", "s")))["metadata"]["name"] == "s"
    with pytest.raises(ObjectNotFound):
        await cached.get(Ref("Service", "default", "other"))
    assert not server.reads


@pytest.mark.parametrize("trusted", [False])
async def test_without_watches_to_rely_on_the_server_is_asked(server, cached):
    await cached.create(_item("a"), "one")
    await server.apply(_item("b"), "two")
    assert await _names(cached) == ["a", "b"]
    assert server.reads == 1


async def test_object_that_no_watch_reports_is_asked_for(server, cached):
    """Reads of one object of a labelled kind, lists by other labels or of the whole cluster, and unwatched kinds."""
    await server.apply(_item("theirs", labels={}), "two")
    await server.apply(_item("token", "Secret"), "two")
    assert await cached.get(Ref("ConfigMap", "default", "theirs"))
    assert await cached.get(TOKEN)
    assert (await cached.list("Secret", "default", MINE)).items
    assert len((await cached.list("ConfigMap")).items) == 1
    assert not (await cached.list("ConfigMap", "default", MINE | {"x": "y"})).items
    assert server.reads == 5


async def test_object_that_nobody_watches_is_believed_for_a_while_but_not_over_ones_own_writes(server, store):
    now = [0.0]
    cached = CachedCluster(server, store, (), lambda: now[0])
    with pytest.raises(ObjectNotFound):
        await cached.get(TOKEN)
    await cached.apply(_token("1"), "one")
    assert [await _text(cached) for _ in range(3)] == ["1", "1", "1"]
    assert server.reads == 2
    await cached.apply(_token("2"), "one")
    assert await _text(cached) == "2"
    await server.apply(_token("3"), "one")
    now[0] += CACHED_SECONDS
    assert await _text(cached) == "3"
    await cached.delete(TOKEN)
    with pytest.raises(ObjectNotFound):
        await cached.get(TOKEN)


async def test_read_during_a_write_is_not_believed(server, cached):
    await cached.apply(_token("1"), "one")
    server.hold = asyncio.Event()
    reading = asyncio.create_task(_text(cached))
    await asyncio.sleep(0)
    await cached.apply(_token("2"), "one")
    server.hold.set()
    assert (await reading, await _text(cached)) == ("1", "2")


async def test_own_writes_are_read(server, cached, store):
    await cached.create(_item("a"), "one")
    await cached.apply(_item("b"), "one")
    known = store.known["ConfigMap"]
    made = await cached.patch_status(Ref("ConfigMap", "default", "b"), {"seen": 1})
    assert made == known.get(("default", "b"))
    assert made["status"] == {"seen": 1}
    await cached.delete(A)
    assert await _names(cached) == ["b"]
    await cached.apply(_item("c", finalizers=["example.com/x"]), "one")
    await cached.delete(Ref("ConfigMap", "default", "c"))
    assert "deletionTimestamp" in known.get(("default", "c"))["metadata"]
    assert not server.reads


async def test_object_that_turns_out_to_be_gone_is_known_to_be(server, cached):
    await cached.create(_item("a"), "one")
    await server.delete(A)
    with pytest.raises(ObjectNotFound):
        await cached.delete(A)
    assert await _names(cached) == []


async def test_object_that_lost_its_label_is_no_longer_known(cached, store):
    """Its watch ends, and would report nothing that happens to it."""
    await cached.apply(_item("a", labels={}), "one")
    assert store.known["ConfigMap"].get(("default", "a")) is None


@pytest.mark.parametrize("trusted", [True, False])
async def test_first_status_is_known_to_be_the_first_unless_watches_cannot_be_relied_on(server, cached, trusted):
    uid = (await cached.create(_item("a"), "one"))["metadata"]["uid"]
    for each in (uid, uid, None):
        await cached.patch_status(A, {"seen": len(server.first)}, each)
    assert server.first == [trusted, False, False]
