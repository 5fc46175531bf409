"""What a worker's metrics say of blocks."""

import pytest

from legato_engine.core.frames import CoreStatus, CoreTotals
from legato_engine.metrics import WorkerMetrics
from legato_protocol.load import Load


@pytest.mark.parametrize(("idle", "used", "leaked"), [(True, 0, 0), (False, 7, 0), (True, 7, 7)])
def test_blocks_in_use_on_an_idle_worker_are_leaked(idle: bool, used: int, leaked: int) -> None:
    load = Load(0, 0, 0, 90, 3, used, 0)
    text = WorkerMetrics().exposition(CoreStatus(load, CoreTotals(), idle), ready=True, gateways=1).decode()
    assert f"legato_worker_leaked_blocks {float(leaked)}\n" in text
    assert f"legato_worker_used_blocks {float(used)}\n" in text


@pytest.mark.parametrize(("mismatch", "value"), [("", 0.0), ("block 3 has 1 references and 0 owners", 1.0)])
def test_what_a_core_says_of_its_blocks_is_told(mismatch: str, value: float) -> None:
    status = CoreStatus(Load(0, 0, 0, 90, 3, 7, 0), CoreTotals(), True, 0.75, mismatch)
    text = WorkerMetrics().exposition(status, ready=True, gateways=1).decode()
    assert f"legato_worker_kv_mismatch {value}\n" in text
    assert "legato_worker_kv_utilization 0.75\n" in text


@pytest.mark.parametrize(("used", "quarantined", "ratio"), [(0, 0, 0.0), (20, 5, 0.25), (90, 10, 1.0)])
def test_blocks_that_others_cannot_have(used: int, quarantined: int, ratio: float) -> None:
    """Cached ones they can."""
    left = 100 - used - quarantined
    load = Load(0, 0, 0, left // 2, left - left // 2, used, quarantined)
    text = WorkerMetrics().exposition(CoreStatus(load, CoreTotals(), False), ready=True, gateways=1).decode()
    assert f"legato_worker_kv_cache_usage_ratio {ratio}\n" in text


def test_connections_that_strangers_leave_are_told() -> None:
    text = WorkerMetrics().exposition(None, ready=True, gateways=1, abandoned=3).decode()
    assert "legato_worker_transfer_abandoned_connections 3.0\n" in text
