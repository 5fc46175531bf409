"""Behaviour that every `Cluster` shares with Kubernetes' API. `CLUSTERS` names the implementations."""

import contextlib
import itertools

import pytest

from legato_operator.cluster import Ref, uid_of
from legato_operator.errors import Conflict, Invalid, ObjectNotFound
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.local.store import Store

REF = Ref("ConfigMap", "default", "a")
SERVICE = Ref("InferenceService", "default", "a")


@contextlib.asynccontextmanager
async def _local(_request):
    ticks = itertools.count()
    yield Store(lambda: f"2026-01-01T00:00:{next(ticks):02}Z")


@contextlib.asynccontextmanager
async def _kubernetes(request):
    """The real API server, emptied of what earlier checks left."""
    cluster = KubernetesCluster(request.getfixturevalue("api_server").client())
    try:
        for kind in ("ConfigMap", "Secret", "InferenceService"):
            for left in (await cluster.list(kind, "default")).items:
                ref = Ref(kind, "default", left["metadata"]["name"])
                for manager in {m["manager"] for m in left["metadata"].get("managedFields", ())}:
                    bare = {"apiVersion": left["apiVersion"], "kind": kind, "metadata": {"name": ref.name}}
                    await cluster.apply(bare | ({"spec": left["spec"]} if "spec" in left else {}), manager, force=True)
                with contextlib.suppress(ObjectNotFound):
                    await cluster.delete(ref)
        yield cluster
    finally:
        cluster.close()


CLUSTERS = {"local": _local, "kubernetes": _kubernetes}


@pytest.fixture(params=sorted(CLUSTERS))
async def cluster(request):
    async with CLUSTERS[request.param](request) as opened:
        yield opened


def _item(data=None, name="a", **metadata):
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default", **metadata}}
    return item if data is None else item | {"data": data}


def _service(length):
    model = {"source": {"builtin": "smollm2-135m-instruct"}, "maxLength": length}
    metadata = {"name": "a", "namespace": "default"}
    return {
        "apiVersion": "serving.legato.dev/v1alpha1",
        "kind": SERVICE.kind,
        "metadata": metadata,
        "spec": {"model": model},
    }


async def test_apply_creates_and_writes_nothing_the_second_time(cluster):
    made = await cluster.apply(_item({"x": "1"}), "one")
    assert made["data"] == {"x": "1"}
    assert await cluster.get(REF) == made
    assert uid_of(made)
    again = await cluster.apply(_item({"x": "1"}), "one")
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    made["data"]["x"] = "2"
    assert (await cluster.get(REF))["data"] == {"x": "1"}, "objects are values"


async def test_missing_object_is_not_found(cluster):
    for call in (cluster.get(REF), cluster.delete(REF), cluster.patch_status(REF, {})):
        with pytest.raises(ObjectNotFound):
            await call


@pytest.mark.parametrize(
    ("made", "others"),
    [
        (_item({"x": "1"}), [("one", _item({"x": "1"})), ("two", _item({"x": "1"}))]),
        (_service(32), [("one", _service(32)), ("one", _service(64)), ("two", _service(32))]),
    ],
    ids=["ConfigMap", "InferenceService"],
)
async def test_create_makes_what_is_not_there_and_leaves_alone_what_is(cluster, made, others):
    """Whosever it is, and though it disagrees in nothing."""
    stored = await cluster.create(made, "one")
    for manager, again in others:
        with pytest.raises(Conflict):
            await cluster.create(again, manager)
    assert (await cluster.get(Ref(made["kind"], "default", "a"))) == stored


BOTH = {"x": 1, "y": 2}


@pytest.mark.parametrize(
    "steps",
    [
        # A field that is left out is dropped, but not one of another manager.
        [("one", BOTH, BOTH), ("one", {"y": 2}, {"y": 2})],
        [("one", {"x": 1}, {"x": 1}), ("two", {"y": 2}, BOTH), ("one", {}, {"y": 2})],
        # A shared one stays until its last owner leaves it.
        [("one", {"x": 1}, {"x": 1}), ("two", {"x": 1}, {"x": 1}), ("one", {}, {"x": 1}), ("two", {}, {})],
        # Another value is a conflict, unless it is taken over.
        [("one", {"x": 1}, {"x": 1}), ("two", {"x": 2}, "x")],
        [("one", {"x": 1}, {"x": 1}), ("two by force", {"x": 2}, {"x": 2}), ("one", {"x": 1}, "x")],
        # A plain POST would keep it for ever: its fields belong to another operation than those of an apply.
        [("create one", BOTH, BOTH), ("one", {"y": 2}, {"y": 2}), ("two", {"y": 3}, "y")],
    ],
)
async def test_field_belongs_to_who_applied_it(cluster, steps):
    """Each step gives the data that it leaves, or the field of a conflict, which changes nothing."""
    before = {}
    for manager, given, expected in steps:
        item, who = _item({name: str(value) for name, value in given.items()}), manager.split()
        write = cluster.create(item, "one") if "create" in who else cluster.apply(item, who[0], force="force" in who)
        if isinstance(expected, str):
            with pytest.raises(Conflict, match=expected):
                await write
        else:
            before = {name: str(value) for name, value in expected.items()}
            assert (await write).get("data", {}) == before
        assert (await cluster.get(REF)).get("data", {}) == before


async def test_write_with_the_uid_of_another_object_is_a_conflict(cluster):
    with pytest.raises(Conflict):
        await cluster.apply(_item({}, uid="gone"), "one")
    first = await cluster.apply(_item({}), "one")
    await cluster.delete(REF, uid_of(first))
    await cluster.apply(_item({}), "one")
    for write in (
        cluster.apply(_item({}, uid="gone"), "one"),
        cluster.delete(REF, uid_of(first)),
        cluster.patch_status(REF, {}, "gone"),
    ):
        with pytest.raises(Conflict):
            await write
    assert await cluster.get(REF)


async def test_recreated_object_is_another_one(cluster):
    first = await cluster.apply(_item({"x": "1"}), "one")
    await cluster.delete(REF)
    second = await cluster.apply(_item({"y": "1"}), "two")
    assert uid_of(second) != uid_of(first)
    assert second["data"] == {"y": "1"}


async def test_finalizers_keep_an_object_until_all_are_gone(cluster):
    await cluster.apply(_item(finalizers=["example.com/one"]), "one")
    await cluster.apply(_item(finalizers=["example.com/two"]), "two")
    await cluster.delete(REF)
    first = (await cluster.get(REF))["metadata"]["deletionTimestamp"]
    await cluster.delete(REF)
    assert (await cluster.get(REF))["metadata"]["deletionTimestamp"] == first
    await cluster.apply(_item(finalizers=[]), "one")
    assert (await cluster.get(REF))["metadata"]["finalizers"] == ["example.com/two"]
    await cluster.apply(_item(finalizers=[]), "two")
    with pytest.raises(ObjectNotFound):
        await cluster.get(REF)


async def test_status_is_apart_from_spec(cluster):
    """A status patch replaces the fields given, raises no generation, and apply does not touch it."""
    await cluster.apply(_service(32), "one")
    uid = uid_of(await cluster.get(SERVICE))
    for conditions in ([], [{"type": "A"}]):
        with contextlib.suppress(Invalid):  # of which only the API server has rules
            await cluster.patch_status(SERVICE, {"conditions": conditions, "model": "m"}, uid)
    with pytest.raises(Conflict):
        await cluster.patch_status(SERVICE, {"model": "x"}, "gone")
    pools = {"prefill": {"ready": 1}, "decode": {"ready": 1}}
    await cluster.patch_status(SERVICE, {"conditions": None, "model": "m", "pools": pools}, uid)
    patched = await cluster.patch_status(SERVICE, {"pools": {"decode": {"ready": 2}}, "model": None})
    assert patched["status"] == {"pools": {"decode": {"ready": 2}}}
    assert patched["metadata"]["generation"] == 1
    changed = await cluster.apply(_service(64) | {"status": {"model": "x"}}, "one")
    assert changed["status"] == {"pools": {"decode": {"ready": 2}}}
    assert changed["metadata"]["generation"] == 2


async def test_list_selects_by_kind_namespace_and_labels(cluster):
    await cluster.apply(_item(name="a", labels={"k": "1"}), "one")
    await cluster.apply(_item(name="b", labels={"k": "2"}), "one")
    await cluster.apply(_item(name="c") | {"kind": "Secret"}, "one")
    assert [i["metadata"]["name"] for i in (await cluster.list("ConfigMap", "default")).items] == ["a", "b"]
    assert [i["metadata"]["name"] for i in (await cluster.list("ConfigMap", labels={"k": "2"})).items] == ["b"]
    assert not (await cluster.list("ConfigMap", "elsewhere")).items
