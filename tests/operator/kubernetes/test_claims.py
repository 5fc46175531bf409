"""Several releases of the operator: each in namespaces of its own, and never two over one."""

import asyncio

import pytest

from legato_operator.kubernetes.leases.claims import CLAIM, TAKEN, NamespaceClaims
from legato_operator.kubernetes.leases.lease import Terms

READS = ("get", "list", "list_metadata")
TERMS = Terms(duration=3, renew_within=2.5, retry=0.05)


async def test_second_release_over_a_namespace_says_so_and_follows_when_the_first_is_gone(s, build):
    async with s.operator("one", lease_name="one") as one:
        await s.serve(build())
        async with s.operator("two", lease_name="two") as two:
            await s.wait(lambda: _ready(two), (503, True))
            assert (await _ready(one))[0] == 200
            assert await two.metric("namespace_taken", namespace=s.name, release=f"{s.name}/one") == 1
            assert await one.metric("namespace_taken") == 0
            await s.wait(lambda: _is_recorded(s, f"release {s.name}/one manages this namespace"))
            await s.serve(build(engine={"chunkTokens": 256}))
            assert {kind for verb, kind, _ in await two.calls() if verb not in READS} <= {"Event", "Lease"}
            one.task.cancel()
            await s.wait(lambda: _ready(two), (200, False))
            await s.serve(build(engine={"chunkTokens": 128}))
            assert await two.metric("namespace_taken") == 0


async def test_claim_goes_with_the_last_service(s, operator, build):
    await s.serve(build(), "demo", "last")
    await s.end("demo")
    assert await s.exists("Lease", CLAIM)
    await s.end("last")
    await s.wait(lambda: s.is_gone("Lease", CLAIM))


async def test_of_two_releases_one_holds_a_namespace_at_any_time(s):
    """One stops renewing without a word; then the other may write, and the first may not."""
    one, two = NamespaceClaims(s.cluster, "one", TERMS), NamespaceClaims(s.cluster, "two", TERMS)
    assert await one.take(s.name)
    assert await NamespaceClaims(s.cluster, "one", TERMS).take(s.name), "replicas of a release share its claims"
    for _ in range(10):
        if await _is_kept(s, one, two):
            break
        one, two = two, one
    else:
        pytest.fail("nobody keeps its claim")
    assert (len(two.taken), bool(two.complaint()), one.complaint()) == (1, True, "")
    async with asyncio.timeout(60):
        while not await two.take(s.name):  # noqa: ASYNC110 - it is asked
            await asyncio.sleep(TERMS.retry)
    assert (one.holds(s.name), two.holds(s.name), dict(two.taken)) == (False, True, {})
    assert not await one.take(s.name)


async def _is_kept(s, one, two):
    """True if `one` keeps its claim for twice its term; False if a renewal was late, and `two` took it."""
    keeping = asyncio.create_task(one.keep())
    until, is_taken = asyncio.get_running_loop().time() + 2 * TERMS.duration, False
    while not is_taken and asyncio.get_running_loop().time() < until:
        is_taken = await two.take(s.name)
        assert not (is_taken and one.holds(s.name))
        await asyncio.sleep(TERMS.retry)
    keeping.cancel()
    return not is_taken


async def _ready(operator):
    answer = await operator.get("/readyz")
    return answer.status_code, "managed by another release" in answer.text


async def _is_recorded(s, note):
    return any(event["reason"] == TAKEN and note in event["note"] for event in await s.events())
