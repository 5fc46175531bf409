"""Blocks, abandoned connections and steps in a worker's metrics."""

import pytest

from legato_engine.core.frames import CoreStatus, CoreTotals
from legato_engine.kvcache.tier_counts import TierCounts
from legato_engine.metrics import WorkerMetrics
from legato_protocol.wire.load import Load


@pytest.mark.parametrize(
    ("idle", "used", "quarantined", "mismatch", "values"),
    [
        (True, 0, 0, "", {"leaked_blocks": 0, "used_blocks": 0, "kv_cache_usage_ratio": 0, "kv_mismatch": 0}),
        (False, 20, 5, "", {"leaked_blocks": 0, "used_blocks": 20, "kv_cache_usage_ratio": 0.25}),  # cached: not used
        (True, 7, 0, "", {"leaked_blocks": 7, "kv_utilization": 0.75}),
        (True, 90, 10, "block 3 has no owner", {"kv_cache_usage_ratio": 1, "kv_mismatch": 1}),
    ],
)
def test_blocks(idle: bool, used: int, quarantined: int, mismatch: str, values: dict[str, float]) -> None:
    left = 100 - used - quarantined
    load = Load(0, 0, 0, left // 2, left - left // 2, used, quarantined)
    status = CoreStatus(load, CoreTotals(), idle, 0.75, mismatch)
    text = WorkerMetrics().exposition(status, ready=True, gateways=1, abandoned=3).decode()
    for name, value in (values | {"transfer_abandoned_connections": 3}).items():
        assert f"legato_worker_{name} {float(value)}\n" in text


def test_steps_are_counted_over_restarts_of_the_core() -> None:
    totals = CoreTotals(decode_rows=7, decode_batches=(1, 0, 2, *[0] * 9), slice_wait=0.75)
    metrics, status = WorkerMetrics(), CoreStatus(Load(0, 0, 0, 1, 0, 0, 0), totals, idle=True, shares_cores=True)
    metrics.on_core_ended(status)
    text = metrics.exposition(status, ready=True, gateways=1).decode()
    for value in ('bucket{le="1.0"} 2', 'bucket{le="4.0"} 6', 'bucket{le="+Inf"} 6', "sum 14"):
        assert f"legato_worker_decode_batch_sequences_{value}.0\n" in text
    assert "legato_worker_slice_wait_seconds_total 1.5\n" in text
    assert "legato_worker_shares_cores 1.0\n" in text


def test_tiers_of_kv_are_counted_by_name_and_missing_without_them() -> None:
    totals = CoreTotals(tiers={"host": TierCounts(9, 4, saved=7, restored=5, evicted=3, restore_seconds=0.5)})
    status = CoreStatus(Load(0, 0, 0, 1, 0, 0, 0), totals, idle=True)
    text = WorkerMetrics().exposition(status, ready=True, gateways=1).decode()
    expected = {"slots": 9, "blocks": 4, "saved_blocks_total": 7, "restored_blocks_total": 5, "evicted_blocks_total": 3}
    for name, value in (expected | {"restore_seconds_total": 0.5}).items():
        assert f'legato_worker_kv_tier_{name}{{tier="host"}} {float(value)}\n' in text
    none = WorkerMetrics().exposition(CoreStatus(status.load, CoreTotals(), True), ready=True, gateways=1)
    assert b"kv_tier" not in none
