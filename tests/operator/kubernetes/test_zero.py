"""A service that loses its last worker and gets it back, beside Kubernetes' own controllers."""

import time
from dataclasses import dataclass, field

from legato_operator.api import conditions
from legato_operator.cluster import Ref
from legato_protocol.demand import DemandReport, ReportedLoad
from legato_protocol.load import Load

BOUNDS = {"min": 0, "max": 3}
SCALING = {"prefill": BOUNDS, "decode": BOUNDS, "idleAfter": "1s", "scaleDownStabilization": "1s"}
AT_ZERO, SERVING = ("True", conditions.SCALED_TO_ZERO), ("True", conditions.ALL_READY)


@dataclass
class Gateways:
    """Tell of idle workers, and of requests that nobody has."""

    up: set[str]
    held: int = 0
    began: float = field(default_factory=time.monotonic)

    def __call__(self):
        uptime = time.monotonic() - self.began
        idle = Load(0, 0, 0, 100, 0, 0, 0, slots=8)
        workers = [
            ReportedLoad(name, "epoch", role, 16, 0.1, idle)
            for name in sorted(self.up)
            for role in ("prefill", "decode")
            if f"-{role}-" in name
        ]
        held = (self.held, 10 * self.held, 10 * self.held)
        return DemandReport("gateway", uptime, (), {}, (), 0.0, {}, (), *held, tuple(workers))


async def _has(s, told, **workers):
    counts = {role: len(await s.pods(role)) for role in ("prefill", "decode")}
    settled = await s.condition("Progressing") == ("False", conditions.UP_TO_DATE)
    return settled and counts == {"prefill": 0, "decode": 0, **workers} and await s.condition("Ready") == told


async def _is_waited_for(s):
    return s.kubelet.waited_for == set(await s.pods("gateway"))


async def _owners(s):
    """Who wrote the decode pool's size."""
    pool = await s.cluster.get(Ref("WorkerPool", s.name, "demo-decode"))
    entries = pool["metadata"]["managedFields"]
    return [entry["manager"] for entry in entries if "f:replicas" in entry["fieldsV1"].get("f:spec", {})]


async def test_the_last_workers_leave_and_a_held_request_brings_one_back_also_after_a_restart_of_the_operator(s, build):
    gateways = s.kubelet.demand = Gateways(s.kubelet.up)
    async with s.operator():
        await s.make(build(scaling=SCALING))
        await s.wait(lambda: _has(s, SERVING, prefill=1, decode=1))
        assert not s.kubelet.waited_for
        await s.wait(lambda: _has(s, AT_ZERO))
        assert await s.condition("GatewayReady") == SERVING
        await s.wait(lambda: _is_waited_for(s))
        gateways.held = 1
        await s.wait(lambda: _has(s, SERVING, decode=1))
        gateways.held = 0
        await s.wait(lambda: _has(s, AT_ZERO))
    async with s.operator("another"):
        gateways.held = 1
        await s.wait(lambda: _has(s, SERVING, decode=1))
    assert "legato-autoscaler" in await _owners(s)
    (gateway,) = (await s.pods("gateway")).values()
    assert "--hold-without-workers" in gateway["spec"]["containers"][0]["args"]
