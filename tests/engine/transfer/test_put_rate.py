"""The rate of puts that gateways predict fetches by."""

import pytest

from legato_engine.transfer.session.put_rate import PutRate


@pytest.mark.parametrize(
    ("puts", "now", "rate"),
    [
        ([], 0.0, 0.0),
        ([(16, 0.01, 0.0)], 1.0, 1600.0),
        ([(16, 0.01, 0.0)], 30.0, 0.0),  # forgotten
        ([(16, 0.01, 0.0), (0, 0.0, 0.5)], 1.0, 1600.0),
        ([(16, 0.01, 0.0), (16, 0.04, 10.0)], 10.0, (0.5 * 1600 + 400) / 1.5),
        ([(16, 0.01, 0.0)] * 9 + [(16, 1.0, 0.0)], 1.0, 1441.6),  # one was interrupted
    ],
)
def test_the_rate_is_that_of_a_usual_put_of_the_last_seconds(puts, now, rate):
    measured = PutRate()
    for put in puts:
        measured.measure(*put)
    assert measured.per_second(now) == pytest.approx(rate)
