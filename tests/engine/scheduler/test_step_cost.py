"""The time of a step is learned from steps, whatever is odd about some of them."""

from random import Random

import pytest

from legato_engine.scheduler.planning.chunk_budget import LATE_CHUNK, LEAST_CHUNK, pairs
from legato_engine.scheduler.planning.step_cost import COLD_STEPS, REACH, StepCost

TPOT = 0.1


def seconds(rows, context, tokens, attended, speed=1.0):
    """A machine on which 4 decode rows take 12 ms, and 512 tokens some 260 ms at first and 560 ms after 4,000."""
    return (6e-3 + 1.5e-3 * rows + 2e-7 * context + 5e-4 * tokens + 1.5e-7 * attended) / speed


def measure(cost, rows, tokens=0, start=0, **machine):
    step = rows, rows * 300, tokens, pairs(tokens, start)
    cost.measure(*step, seconds(*step, **machine))


def trained(**machine):
    """After decodes of several sizes, and prompts in chunks of several sizes."""
    cost = StepCost()
    for step in range(40):
        measure(cost, 1 + step % 8, **machine)
        measure(cost, step % 4, (32, 64, 128)[step % 3], 100 * step, **machine)
    return cost


def chunk(cost, rows, start, tpot=TPOT, tokens=512):
    return cost.budget(tokens, rows, rows * 300, tpot).count(start, 10_000)


def taken(rows, start, count, **machine):
    return seconds(rows, rows * 300, count, pairs(count, start), **machine)


@pytest.mark.parametrize("start", [0, 500, 4000])
@pytest.mark.parametrize("rows", [1, 4, 16, 32])
def test_a_chunk_fills_the_time_beside_decodes_that_were_never_measured_together(rows, start):
    count = chunk(trained(), rows, start)
    assert 0.8 * TPOT < taken(rows, start, count) <= 1.02 * TPOT


@pytest.mark.parametrize("tokens", [0, 128])
def test_what_a_step_should_take_follows_from_those_before_it(tokens):
    step = 6, 1800, tokens, pairs(tokens, 500)
    assert trained().expected(*step) == pytest.approx(seconds(*step), rel=0.1)
    assert trained(speed=0.1).expected(*step) == pytest.approx(seconds(*step, speed=0.1), rel=0.1)
    assert trained().plain(6, 1800) == pytest.approx(seconds(6, 1800, 0, 0), rel=0.1)


def test_before_any_prompt_was_measured_nothing_is_expected_of_one_and_a_chunk_is_a_short_one():
    cost = StepCost()
    for _ in range(10):
        measure(cost, 4)
    assert cost.expected(4, 1200, 64, pairs(64, 0)) == 0 < cost.expected(4, 1200, 0, 0)
    assert chunk(cost, 4, 0) == LATE_CHUNK


def test_logprobs_of_prompts_cost_what_the_first_ones_took():
    cost = StepCost()
    cost.measure_scores(8, 0.5)
    assert cost.budget(512, 0, 0, TPOT).per_scored == 0.5 / 8


def test_a_chunk_grows_in_steps_from_what_was_measured():
    """From one size, nobody knows which part of the time is fixed."""
    cost = StepCost()
    for _ in range(10):
        measure(cost, 0, 16)
    assert chunk(cost, 1, 0) == REACH * 16
    measure(cost, 1, 64)
    assert chunk(cost, 1, 0, tpot=10.0) == REACH * 64


def test_a_slow_machine_computes_the_least_chunk_as_long_as_that_is_nearly_in_time():
    slow = trained(speed=0.1)
    assert chunk(slow, 1, 0) == LEAST_CHUNK
    assert taken(1, 0, LEAST_CHUNK, speed=0.1) < 1.5 * TPOT < taken(4, 0, LEAST_CHUNK, speed=0.1)
    assert LEAST_CHUNK < chunk(slow, 4, 0) <= LATE_CHUNK
    assert chunk(trained(), 100, 0) == LATE_CHUNK


@pytest.mark.parametrize("known", [False, True])
def test_where_a_step_takes_long_whatever_is_in_it_prompts_advance_all_the_same(known):
    """As on cores that other processes share, where threads wait for each other: shorter chunks save nothing there,
    even if it is not known which part of a step takes so long."""
    cost, done, steps = trained(speed=0.2), 0, 0
    for _ in range(40 if known else 0):
        cost.measure(1, 300, 0, 0, 0.3)
    while done < 2000:
        count = cost.budget(512, 1, 300, TPOT).count(done, 2000 - done)
        cost.measure(1, 300, count, pairs(count, done), 0.3 + count * 3e-3)
        done, steps = done + count, steps + 1
    assert steps < 0.7 * 2000 / LEAST_CHUNK


@pytest.mark.parametrize("seed", range(5))
def test_noise_in_short_prompts_does_not_make_long_ones_dear(seed):
    random, cost = Random(seed), StepCost()
    for _ in range(60):
        size = random.choice((40, 64, 100, 128))
        work = 0, 0, size, pairs(size, 0)
        cost.measure(*work, seconds(*work) * random.lognormvariate(0, 0.3))
    prefill, whole = cost.prefill(512), pairs(4000, 0)
    expected = 4000 / prefill.chunk_tokens * prefill.per_step + 4000 * prefill.per_token + whole * prefill.per_pair
    assert expected < 1.1 * (8 * seconds(0, 0, 0, 0) + seconds(0, 0, 4000, whole))


def test_chunks_that_are_short_because_of_missing_time_do_not_make_the_prompts_of_a_worker_look_dear():
    """The fixed cost of a step is shared by the tokens of a chunk as long as only prompts would have."""
    cost = StepCost()
    for _ in range(20):
        measure(cost, 4, LEAST_CHUNK)
    assert cost.prefill(512).chunk_tokens == REACH * LATE_CHUNK
    measure(cost, 0, 100)
    assert cost.prefill(512).chunk_tokens == REACH * 100
    assert cost.prefill(50).chunk_tokens == 50


def test_cold_steps_do_not_count():
    """The first steps of each kind load code: however long they take, nothing is concluded from them."""
    cost = StepCost()
    for _ in range(COLD_STEPS):
        cost.measure(4, 1200, 0, 0, 30.0)
        cost.measure(4, 1200, 64, pairs(64, 0), 30.0)
    assert chunk(cost, 4, 0) == LATE_CHUNK
    for _ in range(3):
        measure(cost, 4)
        measure(cost, 0, 512)
    assert taken(4, 0, chunk(cost, 4, 0)) > 0.8 * TPOT


def predicted(cost, rows, context):
    decode = cost.decode()
    return decode.per_step + decode.per_row * rows + decode.per_context * context


@pytest.mark.parametrize("prompts", [0, 64], ids=["decodes", "with prompts"])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_until_rows_vary_a_step_costs_the_same_whatever_their_number(rows, prompts):
    cost = StepCost()
    for step in range(60):
        measure(cost, rows, prompts * (step % 2))
    assert cost.decode().only_rows == rows
    assert predicted(cost, 13, 3900) < 1.1 * predicted(cost, rows, rows * 300)
    for _ in range(10):
        measure(cost, rows + 3)
    assert cost.decode().only_rows == 0
    assert predicted(cost, 13, 3900) == pytest.approx(seconds(13, 3900, 0, 0), rel=0.15)


def test_a_long_phase_of_one_number_of_rows_leaves_what_rows_cost():
    cost = trained()
    for _ in range(10_000):
        measure(cost, 8)
    assert predicted(cost, 1, 300) == pytest.approx(seconds(1, 300, 0, 0), rel=0.1)


PROMPT, DECODE = (4, 1200, 64, pairs(64, 0)), (4, 1200, 0, 0)


@pytest.mark.parametrize(
    ("steps", "change"),
    [
        ([(PROMPT, 5.0), (DECODE, 5.0)], 16),
        ([(PROMPT, 0.0)], 0),
        ([(DECODE, seconds(*DECODE))] * 10_000, 16),
        ([(DECODE, seconds(*DECODE))] * 10_000 + [(PROMPT, 5.0)], 16),
    ],
    ids=["the machine stood still", "no duration", "a long phase of decodes", "and a first slow prompt after it"],
)
def test_odd_steps_change_little(steps, change):
    cost = trained()
    before = chunk(cost, 4, 0)
    for work, took in steps:
        cost.measure(*work, took)
    assert abs(chunk(cost, 4, 0) - before) <= change


def test_it_follows_a_machine_that_becomes_slower():
    cost = trained()
    for step in range(200):
        measure(cost, 4, speed=0.5)
        measure(cost, 4, 64, 25 * step, speed=0.5)
    assert 0.8 * TPOT < taken(4, 1000, chunk(cost, 4, 1000), speed=0.5) <= 1.05 * TPOT


def test_larger_chunks_that_took_less_time_do_not_make_time_negative():
    cost = StepCost()
    for _ in range(20):
        cost.measure(4, 1200, 32, pairs(32, 0), 0.05)
        cost.measure(4, 1200, 64, pairs(64, 0), 0.03)
    assert chunk(cost, 4, 0) == REACH * 64
