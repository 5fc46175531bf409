"""What the operator writes, on a real API server."""

import asyncio

from legato_operator import apply, placement
from legato_operator.actions import Apply
from legato_operator.clock import SystemClock
from legato_operator.cluster import ref_of
from legato_operator.observe import observe
from legato_operator.plan import plan

PLACE = placement.kubernetes("engine:test", "gateway:test")


class NoWorkers:
    """None answers."""

    async def state(self, address, token):
        return None


def test_everything_applied_twice_changes_nothing(space, build):
    """All objects of a service, its pods among them: the second apply leaves every resourceVersion as it is."""

    async def check():
        async with space() as s:
            await s.make(build())
            written = {}
            for _ in range(3):  # pods start in the pass after their pools
                stored = await s.cluster.get(s.ref())
                observed = await observe(s.cluster, NoWorkers(), SystemClock(), stored)
                phases = plan(observed, PLACE).phases
                await apply.apply(s.cluster, NoWorkers(), observed, phases)
                done = [action for phase in phases for action in phase.actions if isinstance(action, Apply)]
                written |= {(ref_of(action.item), action.manager): action for action in done}
            kinds = {ref.kind for ref, _ in written}
            assert {"Pod", "Deployment", "WorkerPool", "Service", "Role", "NetworkPolicy"} <= kinds
            for action in written.values():
                await s.wait(lambda action=action: _changes_nothing(s, action))

    asyncio.run(check())


async def _changes_nothing(s, action):
    """Asked again where Kubernetes' own controllers may have written between the two calls."""
    before = await s.cluster.get(ref_of(action.item))
    after = await s.cluster.apply(action.item, action.manager, action.force)
    return after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
