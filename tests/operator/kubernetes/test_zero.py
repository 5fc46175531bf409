"""A service that loses its last worker and gets it back, beside Kubernetes' own controllers."""

import time
from dataclasses import dataclass, field

from legato_operator.api import conditions
from legato_protocol.wire.demand import DemandReport, ReportedLoad
from legato_protocol.wire.load import Load

BOUNDS = {"min": 0, "max": 3}
SCALING = {"prefill": BOUNDS, "decode": BOUNDS, "idleAfter": "1s", "scaleDownStabilization": "1s"}
AT_ZERO, SERVING = ("True", conditions.SCALED_TO_ZERO), ("True", conditions.ALL_READY)


@dataclass
class Gateways:
    """Report idle workers, and queued requests."""

    up: set[str]
    queued: int = 0
    began: float = field(default_factory=time.monotonic)

    def __call__(self):
        idle = Load(0, 0, 0, 100, 0, 0, 0, slots=8)
        workers = [(name, role) for name in sorted(self.up) for role in ("prefill", "decode") if f"-{role}-" in name]
        loads = tuple(ReportedLoad(name, "epoch", role, 16, 0.1, idle) for name, role in workers)
        queued = (self.queued, 10 * self.queued, 10 * self.queued)
        return DemandReport("gateway", time.monotonic() - self.began, (), {}, (), 0.0, {}, (), *queued, loads)


async def _has(s, ready, **workers):
    counts = {role: len(await s.pods(role)) for role in ("prefill", "decode")}
    settled = await s.condition("Progressing") == ("False", conditions.UP_TO_DATE)
    return settled and counts == {"prefill": 0, "decode": 0, **workers} and await s.condition("Ready") == ready


async def _is_waited_for(s):
    return s.kubelet.waited_for == set(await s.pods("gateway"))


async def test_the_last_workers_leave_and_a_queued_request_brings_one_back_also_after_a_restart_of_the_operator(
    s, build
):
    gateways = s.kubelet.demand = Gateways(s.kubelet.up)
    async with s.operator():
        await s.make(build(scaling=SCALING))
        await s.wait(lambda: _has(s, SERVING, prefill=1, decode=1))
        assert not s.kubelet.waited_for
        await s.wait(lambda: _has(s, AT_ZERO))
        assert await s.condition("GatewayReady") == SERVING
        await s.wait(lambda: _is_waited_for(s))
        gateways.queued = 1
        await s.wait(lambda: _has(s, SERVING, decode=1))
        gateways.queued = 0
        await s.wait(lambda: _has(s, AT_ZERO))
    async with s.operator("another"):
        gateways.queued = 1
        await s.wait(lambda: _has(s, SERVING, decode=1))
    assert "legato-autoscaler" in await s.scalers()
    (gateway,) = (await s.pods("gateway")).values()
    assert "--hold-without-workers" in gateway["spec"]["containers"][0]["args"]
