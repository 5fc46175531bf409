from observations import observed, sizes_over

from legato_cli.simulation.rivals.concurrency import Concurrency

BUSY = {"in_flight": {"prefill": 6, "decode": 90}}


def test_size_is_the_mean_of_a_minute_by_target():
    """6 ÷ 2 and 90 ÷ 15; neither is twice what serves, so it does not panic."""
    assert sizes_over(Concurrency(2, 15).scaler(), 60, **BUSY) == {"prefill": 3, "decode": 6}


def test_panic_follows_the_last_seconds():
    """After a minute of nothing, 6 s of 8 in flight: the mean of a minute is 0.8, that of 6 s asks for 4 of 2."""
    scaler = Concurrency(2, 15).scaler()
    steady = {"prefill": 2, "decode": 4}
    sizes_over(scaler, 58, sizes=steady)
    seen = [
        scaler.sizes(observed(now=now, sizes=steady, in_flight={"prefill": 8, "decode": 0}))["prefill"]
        for now in (60, 62, 64)
    ]
    assert seen == [1, 1, 4]  # means over 6 s: 2.7, 5.3 and 8


def test_panic_never_shrinks_and_ends_after_a_minute():
    scaler = Concurrency(2, 15).scaler()
    calm = {"prefill": 4, "decode": 4}
    for now in (0, 2, 4):
        scaler.sizes(observed(now=now, sizes=calm, ready={"prefill": 2, "decode": 4}, in_flight={"prefill": 8}))
    assert sizes_over(scaler, 56, begin=6, sizes=calm)["prefill"] == 4
    assert sizes_over(scaler, 2, begin=64, sizes=calm)["prefill"] == 2


def test_one_decision_at_most_halves():
    """What serves counts, not what is wished."""
    scaler = Concurrency(2, 15).scaler()
    assert scaler.sizes(observed(sizes={"decode": 9})) == {"decode": 4}
