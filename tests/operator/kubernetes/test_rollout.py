"""A revision that fails, on a real API server: what is good is kept there, so that another operator goes on with it."""

from legato_operator.api import conditions

POOLS = ("demo-prefill", "demo-decode")
FAILED = ("False", conditions.ROLLOUT_FAILED)


async def _chunks(s, role):
    """The setting of each pod of a role."""
    return {name: _chunk(pod) for name, pod in (await s.pods(role)).items()}


async def _kept(s):
    """The setting of the kept revisions of pools, by the pool."""
    items = (await s.cluster.list("ControllerRevision", s.name, {"serving.legato.dev/service": "demo"})).items
    owners = {item["metadata"]["ownerReferences"][0]["name"]: item["data"] for item in items}
    return {owner: _chunk(data) for owner, data in owners.items() if owner in POOLS}


def _chunk(template):
    arguments = template["spec"]["containers"][0]["args"]
    return int(arguments[arguments.index("--chunk-tokens") + 1])


async def test_failed_revision_is_taken_back_by_whoever_leads_then(s, build):
    """Surge 0: the worker that was given up is made anew from the template that was kept."""

    def service(chunk, **rollout):
        return build(engine={"chunkTokens": chunk}, rollout={"maxSurge": 0, "maxUnavailable": 1, **rollout})

    async with s.operator():
        await s.serve(service(512))
        await s.wait(lambda: _kept(s), {"demo-prefill": 512, "demo-decode": 512})
        s.kubelet.schedules = False  # nothing that is made from here on starts
        await s.make(service(256))
        await s.wait(lambda: _chunks(s, "prefill"), {"demo-prefill-0": 256})
        await s.crash("demo-prefill-0")
        await s.wait(lambda: s.condition("Progressing"), FAILED)
        assert await _chunks(s, "decode") == {"demo-decode-0": 512}
        assert await s.condition("Ready") == ("True", conditions.DEGRADED), "and no surge to keep one"
    async with s.operator("two"):
        await s.make(service(256, autoRollback=True))
        await s.wait(lambda: _chunks(s, "prefill"), {"demo-prefill-0": 512})
        s.kubelet.schedules = True
        await s.wait(s.ready)
        assert await s.condition("Progressing") == FAILED
        await s.serve(service(128, autoRollback=True))
        await s.wait(lambda: _kept(s), {"demo-prefill": 128, "demo-decode": 128})
