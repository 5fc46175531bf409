"""Probes, state and metrics: what the server tells of its core, and to whom."""

import pytest
from websockets.exceptions import InvalidStatus

from legato_engine.core.frames import IterationReport, Loading
from legato_protocol.wire.stream import HandoffReport


async def test_readiness_tells_the_phase_and_comes_with_the_core(bench):
    core = await bench.next_core()
    await core.say(Loading("loading", 0.42))
    await bench.until(lambda: bench.worker.hub.phase != "resolving")
    assert await bench.get("health", "/readyz") == (503, "loading 42%\n")
    assert (await bench.get("health", "/healthz"))[0] == 200
    await bench.serves(core)
    assert await bench.get("health", "/readyz") == (200, "ready\n")


async def test_the_control_port_wants_the_token(bench):
    await bench.core()
    assert (await bench.get("control", "/state", token="wrong"))[0] == 401
    assert (await bench.get("control", "/drain", "POST", token=""))[0] == 401
    with pytest.raises(InvalidStatus) as refused:
        async with bench.dial("/stream", token="wrong"):
            pass
    assert refused.value.response.status_code == 401
    assert (await bench.get("control", "/state"))[0] == 200
    assert await bench.refused("unauthorized") == 3
    assert not bench.worker.hub.draining


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("reason", ["", "RDMA: no device"])
async def test_kernels_and_transports_that_are_not_used_are_reported_with_the_reason(bench, reason, fallback):
    kernels = "a kernel failed" if reason else ""
    await bench.core(transport_reason=reason, transport_fallback=fallback, fallback=kernels)
    text, state = await bench.metrics(), await bench.state()
    assert f"legato_worker_transport_fallback {float(fallback)}" in text
    assert f"legato_worker_kernel_fallback {float(bool(kernels))}" in text
    reported = (state["transport_reason"], state["transport_fallback"], state["fallback"])
    assert reported == (reason, fallback, kernels)
    why = f" ({reason})" if reason else ""
    transport = f"WARNING hand-offs fall back to memory{why}"
    assert [line for line in bench.logged if "hand-offs fall back" in line] == [transport] * fallback
    kernel = f"WARNING kernels fall back to slower operators: {kernels}"
    assert [line for line in bench.logged if "kernels fall back" in line] == [kernel] * bool(kernels)
    ready = next(line for line in bench.logged if "hand-offs by memory" in line)
    assert ready.endswith("hand-offs by memory" + ("" if fallback else why))


async def test_memory_of_the_node_that_cannot_be_read_is_a_fallback_for_as_long_as_it_lasts(bench):
    core = await bench.core(transport_reason="RDMA: no device")
    await core.say(IterationReport(status=bench.status(transfer={"unreadable_peers": 2})))
    await bench.reported()
    state = await bench.state()
    assert state["transport_reason"] == "RDMA: no device; the memory of 2 workers of this node cannot be read"
    assert state["transport_fallback"]
    assert "legato_worker_transport_fallback 1.0" in await bench.metrics()


async def test_state_and_metrics_show_what_the_core_said(bench):
    core = await bench.core()
    report = HandoffReport("r", 1, 9, "p0", 4, 1, 4096, 0.01, 0.001, "memory")
    await core.say(IterationReport(handoffs=(report,), status=bench.status()))
    await bench.reported()
    state = await bench.state()
    assert state["blocks"] == {"free": 5, "cached": 2, "used": 1, "quarantined": 0}
    assert (state["epoch"], state["kv_revision"], state["role"]) == (core.epoch, "kv", "decode")
    assert [(told["source"], told["room"], told["blocks"]) for told in state["handoffs"]] == [("p0", 9, 4)]
    text = await bench.metrics()
    assert "legato_worker_steps_total 3.0" in text
    assert "legato_worker_free_blocks 5.0" in text


async def test_a_worker_logs_once_that_it_shares_its_cores(bench):
    core = await bench.core()
    for shares in (False, True, True):
        await core.say(IterationReport(status=bench.status(shares_cores=shares)))
        await bench.reported()
    assert (await bench.state())["shares_cores"]
    assert [line for line in bench.logged if "shares its cores" in line] == [
        "INFO shares its cores with other workers: steps take time slices by deadline"
    ]
