from observations import observed, worker

from legato_cli.simulation.rivals.dynamo import Dynamo
from legato_operator.autoscaler.signals import Signals


def signals(queues=(0, 0), used=(0, 0, 0, 0)) -> Signals:
    prefill = [worker(f"p{i}", "prefill", queue_tokens=tokens) for i, tokens in enumerate(queues)]
    return Signals((*prefill, *(worker(f"d{i}", "decode", used=blocks) for i, blocks in enumerate(used))))


def sizes(now=0.0, ready=None, **changes):
    seen = observed(now=now, signals=signals(**changes), **({"ready": ready} if ready else {}))
    return Dynamo(1000, 0.5).scaler().sizes(seen)


def test_one_more_if_any_worker_is_above():
    assert sizes(queues=(0, 1000), used=(30, 30, 30, 51)) == {"prefill": 3, "decode": 5}


def test_one_less_if_all_are_below():
    """Below 100 tokens and 30 of 100 blocks."""
    assert sizes(queues=(99, 0), used=(29, 0, 0, 0)) == {"prefill": 1, "decode": 3}


def test_between_thresholds_nothing_changes():
    assert sizes(queues=(100, 0), used=(30, 0, 0, 0)) == {"prefill": 2, "decode": 4}


def test_while_a_worker_starts_it_only_watches():
    assert sizes(queues=(5000, 0), used=(0,) * 4, ready={"prefill": 1, "decode": 4}) == {"prefill": 2, "decode": 3}


def test_decides_every_five_seconds():
    scaler = Dynamo(1000, 0.5).scaler()
    busy = signals(queues=(2000, 0), used=(40,) * 4)
    found = [scaler.sizes(observed(now=now, signals=busy))["prefill"] for now in (0, 2, 4, 6)]
    assert found == [3, 2, 2, 3]


def test_last_worker_stays():
    seen = observed(sizes={"prefill": 1, "decode": 1}, signals=signals(queues=(0,), used=(0,)))
    assert Dynamo(1000, 0.5).scaler().sizes(seen) == {"prefill": 1, "decode": 1}
