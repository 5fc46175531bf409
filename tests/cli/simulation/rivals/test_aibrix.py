import pytest
from observations import observed, sizes_over

from legato_cli.simulation.rivals.aibrix import Aibrix


@pytest.mark.parametrize(
    ("kv_usage", "size"),
    [(0.5, 4), (0.54, 4), (0.56, 5), (0.75, 6), (1.0, 8), (0.46, 4)],
)
def test_size_is_multiplied_beyond_the_tolerance(kv_usage, size):
    """4 decode workers, target 0.5."""
    assert Aibrix(2, 0.5).scaler().sizes(observed(kv_usage=kv_usage))["decode"] == size


def test_at_most_doubles():
    """9 in flight at 2 workers is 4.5 times the target of 1."""
    sizes = Aibrix(1, 0.5).scaler().sizes(observed(in_flight={"prefill": 9, "decode": 0}))
    assert sizes["prefill"] == 4


def test_down_after_300_s_and_by_half():
    scaler = Aibrix(2, 0.5).scaler()
    assert scaler.sizes(observed(kv_usage=0.5))["decode"] == 4
    assert sizes_over(scaler, 296, begin=2, kv_usage=0.0)["decode"] == 4
    assert sizes_over(scaler, 10, begin=300, kv_usage=0.0)["decode"] == 2


def test_metric_is_per_worker_that_serves():
    """4 in flight at one worker of two: twice the target, though the other one starts."""
    seen = observed(in_flight={"prefill": 4, "decode": 0}, ready={"prefill": 1, "decode": 4}, kv_usage=0.5)
    assert Aibrix(2, 0.5).scaler().sizes(seen) == {"prefill": 4, "decode": 4}
