"""Probes, state and metrics: what the server tells of its core, and to whom."""

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from legato_engine.core.frames import (
    Loading,
    Turn,
)
from legato_protocol.stream import (
    HandoffReport,
)


def test_readiness_tells_the_phase_and_comes_with_the_core(run: Any) -> None:
    async def test(bench: Any) -> None:
        core = await asyncio.wait_for(bench.cores.get(), bench.patience)
        await core.say(Loading("loading", 0.42))
        await bench.until(lambda: bench.worker.hub.phase != "resolving")
        assert await bench.get("health", "/readyz") == (503, "loading 42%\n")
        assert (await bench.get("health", "/healthz"))[0] == 200
        await core.start()
        await bench.until(lambda: bench.worker.hub.core is not None)
        assert await bench.get("health", "/readyz") == (200, "ready\n")

    run(test)


def test_the_control_port_wants_the_token(run: Any) -> None:
    async def test(bench: Any) -> None:
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

    run(test)


@pytest.mark.parametrize(("fallback", "value"), [("", 0.0), ("a kernel failed", 1.0)])
def test_kernels_that_are_not_used_are_told(run: Any, fallback: str, value: float) -> None:
    async def test(bench: Any) -> None:
        core = await asyncio.wait_for(bench.cores.get(), bench.patience)
        await core.start(fallback=fallback)
        await bench.until(lambda: bench.worker.hub.core is not None)
        text = (await bench.get("health", "/metrics"))[1]
        assert f"legato_worker_kernel_fallback {value}" in text
        assert json.loads((await bench.get("control", "/state"))[1])["fallback"] == fallback
        warned = [line for line in bench.logged if "torch's own operators compute instead" in line]
        assert warned == (
            [f"WARNING {fallback}; torch's own operators compute instead, as asked for"] if fallback else []
        )

    run(test)


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("reason", ["", "RDMA: no device"])
def test_what_hand_offs_do_not_go_by_is_told_with_the_reason(run: Any, reason: str, fallback: bool) -> None:
    async def test(bench: Any) -> None:
        core = await asyncio.wait_for(bench.cores.get(), bench.patience)
        await core.start(transport_reason=reason, transport_fallback=fallback)
        await bench.until(lambda: bench.worker.hub.core is not None)
        text = (await bench.get("health", "/metrics"))[1]
        assert f"legato_worker_transport_fallback {float(fallback)}" in text
        state = json.loads((await bench.get("control", "/state"))[1])
        assert (state["transport_reason"], state["transport_fallback"]) == (reason, fallback)
        why = f" ({reason})" if reason else ""
        warned = [line for line in bench.logged if "hand-offs fall back" in line]
        assert warned == ([f"WARNING hand-offs fall back to memory{why}"] if fallback else [])
        ready = next(line for line in bench.logged if "hand-offs by memory" in line)
        assert ready.endswith("hand-offs by memory" + ("" if fallback else why))

    run(test)


def test_state_and_metrics_show_what_the_core_said(run: Any) -> None:
    async def test(bench: Any) -> None:
        core = await bench.core()
        report = HandoffReport("r", 1, 9, "p0", 4, 1, 4096, 0.01, 0.001, "memory")
        await core.say(Turn(handoffs=(report,), status=bench.status()))
        await bench.until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.status))
        state = json.loads((await bench.get("control", "/state"))[1])
        assert state["blocks"] == {"free": 5, "cached": 2, "used": 1, "quarantined": 0}
        assert (state["epoch"], state["kv_revision"], state["role"]) == (core.epoch, "kv", "decode")
        assert [(told["source"], told["room"], told["blocks"]) for told in state["handoffs"]] == [("p0", 9, 4)]
        text = (await bench.get("health", "/metrics"))[1]
        assert "legato_worker_steps_total 3.0" in text
        assert "legato_worker_free_blocks 5.0" in text

    run(test)
