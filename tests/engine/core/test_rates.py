"""How old measurements are, and how long steps take that decode."""

import pytest

from legato_engine.core.rates import Rates


def test_ages_are_those_of_the_last_step_of_each_kind():
    rates = Rates()
    assert (rates.prefill_age(5.0), rates.decode_age(5.0)) == (0.0, 0.0)
    rates.measured(32, 0, 0.1, now=1.0)
    rates.measured(0, 2, 0.1, now=2.0)
    assert (rates.prefill_age(5.0), rates.decode_age(5.0)) == (4.0, 3.0)
    rates.measured(32, 2, 0.1, now=4.5)
    assert (rates.prefill_age(5.0), rates.decode_age(5.0)) == (0.5, 0.5)


def test_the_time_of_a_step_is_that_of_steps_that_decoded_and_were_not_cold():
    rates = Rates()
    for now in range(2):
        rates.measured(0, 1, 9.0, float(now))
    assert rates.step_time == 0.0
    rates.measured(64, 0, 5.0, 3.0)
    assert rates.step_time == 0.0
    rates.measured(0, 1, 0.1, 4.0)
    rates.measured(0, 1, 0.2, 5.0)
    assert rates.step_time == pytest.approx(0.11)
