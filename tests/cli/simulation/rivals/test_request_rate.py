from observations import sizes_over

from legato_cli.simulation.rivals.request_rate import RequestRate


def test_each_pool_has_its_own_target():
    """12 requests a second, 3 for a prefill worker and 2 for a decode worker."""
    assert sizes_over(RequestRate(3, 2).scaler(), 60, requests=12.0) == {"prefill": 4, "decode": 6}


def test_rate_is_the_mean_of_a_minute():
    """At 64 s, 18 of the last 30 samples saw 12: a rate of 7.2."""
    scaler = RequestRate(3, 2).scaler()
    sizes = sizes_over(scaler, 28, requests=0.0, sizes={"prefill": 1, "decode": 1})
    assert sizes == {"prefill": 1, "decode": 1}
    assert sizes_over(scaler, 34, begin=30, requests=12.0, sizes=sizes) == {"prefill": 3, "decode": 4}


def test_length_of_requests_is_not_seen():
    scaler = RequestRate(3, 2).scaler()
    assert sizes_over(scaler, 60, requests=6.0, queue_tokens=10**9, kv_usage=1.0) == {"prefill": 2, "decode": 4}
