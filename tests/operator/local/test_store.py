"""Watches of the local store; what it shares with Kubernetes' API is checked by the conformance suite."""

import pytest

from legato_operator.cluster import Ref
from legato_operator.errors import Gone
from legato_operator.local.store import Store


@pytest.fixture
def store():
    return Store(lambda: "2026-01-01T00:00:00Z", kept_events=8)


async def apply(store, name="a", kind="ConfigMap", **data):
    metadata = {"name": name, "namespace": "default"}
    await store.apply({"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": data}, "one")


async def test_watch_misses_nothing_after_a_list(store):
    await apply(store, x="0")
    since = (await store.list("ConfigMap")).version
    await apply(store, x="1")
    await apply(store, "other", kind="Secret")
    await apply(store, "b")
    await store.delete(Ref("ConfigMap", "default", "a"))
    seen = []
    async for event in store.watch("ConfigMap", since):
        seen.append((event.type, event.object["metadata"]["name"]))
        if len(seen) == 3:
            break
    assert seen == [("MODIFIED", "a"), ("ADDED", "b"), ("DELETED", "a")]


async def test_watch_from_too_long_ago_is_gone(store):
    since = (await store.list("ConfigMap")).version
    for number in range(20):
        await apply(store, x=str(number))
    with pytest.raises(Gone):
        await anext(aiter(store.watch("ConfigMap", since)))
