"""The Lease on a real API server: never two leaders, whatever they do at the same time."""

import asyncio

import pytest
import waiting

from legato_operator.cluster import Ref
from legato_operator.errors import NotLeading, Unavailable
from legato_operator.kubernetes.client.api import KubernetesCluster
from legato_operator.kubernetes.leases.leader import Leader
from legato_operator.kubernetes.leases.lease import Terms
from legato_operator.kubernetes.settings import LEASE

TERMS = Terms(duration=3, renew_within=2.5, retry=0.05)


async def _idle():
    await asyncio.Event().wait()


async def _end(*tasks):
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_there_is_one_leader_at_a_time(s):
    """Four begin at once; whoever leads is ended, and another follows."""
    leaders = [Leader(s.cluster, s.name, f"l{number}", TERMS) for number in range(4)]
    tasks = {leader: asyncio.create_task(leader.lead(_idle)) for leader in leaders}
    watching = asyncio.create_task(_never_two(leaders))
    for _ in range(3):
        await waiting.until(lambda: any(leader.holds() for leader in leaders))
        (leading,) = [leader for leader in leaders if leader.holds()]
        await _end(tasks.pop(leading))
        assert not leading.holds()
    assert not watching.done()
    await _end(watching, *tasks.values())


async def _never_two(leaders):
    while True:
        assert sum(leader.holds() for leader in leaders) < 2
        await asyncio.sleep(0.005)


async def test_work_begins_with_the_lease_and_ends_with_it(s):
    leader = Leader(s.cluster, s.name, "one", TERMS)
    working = asyncio.Event()

    async def work():
        working.set()
        try:
            await _idle()
        finally:
            working.clear()

    task = asyncio.create_task(leader.lead(work))
    await asyncio.wait_for(working.wait(), 90)
    await s.hold_lease(holderIdentity="other", leaseDurationSeconds=3600)
    await waiting.until(lambda: not working.is_set())
    assert not leader.holds()
    await s.cluster.delete(s.ref(LEASE, "Lease"))
    await asyncio.wait_for(working.wait(), 90)
    await _end(task)
    assert "holderIdentity" not in await s.lease()


async def test_lease_ends_with_the_account_of_a_holder_that_can_no_longer_write(s):
    """As after `helm uninstall`, which takes the rights away before the process ends."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "mine", "namespace": s.name}}
    await s.cluster.apply(account, "helm")
    leader = Leader(s.cluster, s.name, "one", Terms(duration=3600, renew_within=3600, retry=3600), account="mine")
    task = asyncio.create_task(leader.lead(_idle))
    await waiting.until(leader.holds)
    await s.cluster.delete(s.ref("mine", "ServiceAccount"))
    await waiting.until(lambda: s.is_gone("Lease", LEASE))
    await _end(task)


async def test_fault_of_the_work_is_raised_and_the_lease_given_back(s):
    async def work():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Leader(s.cluster, s.name, "one", TERMS).lead(work)
    assert "holderIdentity" not in await s.lease()


@pytest.mark.parametrize(("leads", "claims", "error"), [(False, True, NotLeading), (True, False, Unavailable)])
async def test_nothing_is_written_without_the_lease_and_the_namespaces_claim(leads, claims, error):
    leader = Leader(None, "default", "one")
    leader.holds = lambda: leads
    led = KubernetesCluster(None).guarded(lambda namespace: leader.check(namespace, lambda _: claims))
    ref = Ref("ConfigMap", "default", "a")
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "default"}}
    for write in (led.create(item, "m"), led.apply(item, "m"), led.patch_status(ref, {"x": 1}), led.delete(ref)):
        with pytest.raises(error):
            await write
