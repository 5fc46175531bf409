from observations import observed

from legato_cli.simulation.rivals.llm_d import LlmD


def test_tokens_become_seconds_and_usage_adds_up():
    """60,000 tokens at 10,000 a second are 6 s, for 1.5 s each: 4. 4 workers 0.9 full are 3.6, for 0.6 each: 6."""
    scaler = LlmD(1.5, 0.6, peak_prefill=10_000, gradual=False).scaler()
    assert scaler.sizes(observed(queue_tokens=60_000, kv_usage=0.9)) == {"prefill": 4, "decode": 6}


def test_the_guide_adds_one_worker_in_180_s():
    scaler = LlmD(1.5, 0.6, peak_prefill=10_000, gradual=True).scaler()
    assert scaler.sizes(observed(queue_tokens=60_000, kv_usage=0.9)) == {"prefill": 3, "decode": 5}
    later = observed(now=15, sizes={"prefill": 3, "decode": 5}, queue_tokens=60_000, kv_usage=0.9)
    assert scaler.sizes(later) == {"prefill": 3, "decode": 5}


def test_usage_is_that_of_workers_which_serve():
    scaler = LlmD(1.5, 0.6, gradual=False).scaler()
    assert scaler.sizes(observed(kv_usage=0.9, ready={"prefill": 2, "decode": 2}))["decode"] == 4
