"""Several releases of the operator: each in namespaces of its own, and never two over one."""

import asyncio

import pytest

from legato_operator.cluster import Ref
from legato_operator.errors import Unavailable
from legato_operator.kubernetes.claims import CLAIM, TAKEN, NamespaceClaims
from legato_operator.kubernetes.leader import Leader, LedCluster
from legato_operator.kubernetes.lease import Terms

READS = ("get", "list", "list_metadata")
TERMS = Terms(duration=1, renew_within=0.6, retry=0.05)


async def test_two_releases_in_one_namespace_work_beside_each_other(space, s, build):
    """Both have their Lease in the namespace of the first."""
    async with (
        space() as other,
        s.operator("one", lease_name="one-legato-operator"),
        other.operator("two", lease_name="two-legato-operator", lease_namespace=s.name),
    ):
        for each in (s, other):
            await each.make(build())
        for each in (s, other):
            await each.wait(each.ready)


async def test_second_release_over_a_namespace_says_so_and_follows_when_the_first_is_gone(s, build):
    async with s.operator("one", lease_name="one") as one:
        await s.make(build())
        await s.wait(s.ready)
        async with s.operator("two", lease_name="two") as two:
            await s.wait(lambda: _ready(two), (503, True))
            assert (await _ready(one))[0] == 200
            assert await two.metric("namespace_taken", namespace=s.name, release=f"{s.name}/one") == 1
            assert await one.metric("namespace_taken") == 0
            await s.wait(lambda: _told(s, f"release {s.name}/one looks after this namespace"))
            await s.make(build(engine={"chunkTokens": 256}))
            await s.wait(s.is_settled)
            assert {kind for verb, kind, _ in await two.calls() if verb not in READS} <= {"Event", "Lease"}
            one.task.cancel()
            await s.wait(lambda: _ready(two), (200, False))
            await s.make(build(engine={"chunkTokens": 128}))
            await s.wait(s.is_settled)
            assert await two.metric("namespace_taken") == 0


async def test_claim_goes_with_the_last_service(s, operator, build):
    for name in ("demo", "last"):
        await s.make(build(), name)
        await s.wait(lambda name=name: s.ready(name))
    await s.cluster.delete(s.ref())
    await s.wait(lambda: s.exists("InferenceService", "demo"), False)
    assert await s.exists("Lease", CLAIM)
    await s.cluster.delete(s.ref("last"))
    await s.wait(lambda: s.exists("Lease", CLAIM), False)


async def test_of_two_releases_one_holds_a_namespace_at_any_time(s):
    """One stops renewing without a word; then the other may write, and the first may not."""
    one, two = NamespaceClaims(s.cluster, "one", TERMS), NamespaceClaims(s.cluster, "two", TERMS)
    assert await one.take(s.name)
    keeping = asyncio.create_task(one.keep())
    assert not await two.take(s.name)
    assert (two.taken, bool(two.complaint()), one.complaint()) == ({s.name: "one"}, True, "")
    until = asyncio.get_running_loop().time() + 2 * TERMS.duration
    while asyncio.get_running_loop().time() < until:
        assert not await two.take(s.name)
        await asyncio.sleep(TERMS.retry)
    keeping.cancel()
    async with asyncio.timeout(60):
        while not await two.take(s.name):  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(TERMS.retry)
    assert (one.holds(s.name), two.holds(s.name), dict(two.taken)) == (False, True, {})
    assert not await one.take(s.name)


async def test_namespace_that_is_ending_is_not_let_alone(s, build):
    """It loses its Leases and takes no new ones, and its services still have to be let go."""
    held = {**build(), "metadata": {"name": "demo", "namespace": s.name, "finalizers": ["test/held"]}}
    await s.cluster.apply(held, "user")
    await s.call("DELETE", f"/api/v1/namespaces/{s.name}")

    async def taken():
        return await NamespaceClaims(s.cluster, "one", TERMS).take(s.name) and not await s.exists("Lease", CLAIM)

    await s.wait(taken)
    await s.cluster.apply({**held, "metadata": {**held["metadata"], "finalizers": []}}, "user")


async def test_replicas_of_a_release_share_its_claims(s):
    for _ in range(2):
        assert await NamespaceClaims(s.cluster, "one", TERMS).take(s.name)


async def test_nothing_is_written_where_the_claim_is_not_held(s):
    leader = Leader(s.cluster, s.name, "one", TERMS)
    leading = asyncio.create_task(leader.lead(asyncio.Event().wait))
    claims = NamespaceClaims(s.cluster, "one", TERMS)
    led = LedCluster(s.cluster, leader, claims.holds)
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": s.name}}
    ref = Ref("ConfigMap", s.name, "a")
    async with asyncio.timeout(60):
        while not leader.holds():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    for write in (led.apply(item, "m"), led.patch_status(ref, {}), led.delete(ref)):
        with pytest.raises(Unavailable, match="another release"):
            await write
    leading.cancel()
    await asyncio.wait((leading,))


async def _ready(operator):
    """The status, and whether another release is named."""
    answer = await operator.get("/readyz")
    return answer.status_code, "looked after by another release" in answer.text


async def _told(s, note):
    return any(event["reason"] == TAKEN and note in event["note"] for event in await s.events())
