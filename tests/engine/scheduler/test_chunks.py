"""Chunks by time, on a machine whose steps take what a formula says: streams keep their TPOT beside long prompts."""

from math import inf

import pytest
from scheduled_worker import Client, Worker, ask, prompt

from legato_engine.scheduler.planning.chunk_budget import LATE_CHUNK, LEAST_CHUNK
from legato_protocol.step_target import STEP_TARGET

TPOT, PROMPT, CHUNK = 0.1, 4000, 512


def seconds(batch, per_context=2e-7):
    """A machine that computes a prompt's first 512 tokens in 0.28 s and its last ones in 0.56 s."""
    total = 6e-3
    for row in batch.rows:
        pairs = len(row.tokens) * (row.start + len(row.tokens) / 2)
        total += 1.5e-3 + per_context * row.start if len(row.tokens) == 1 else 5e-4 * len(row.tokens) + 1.5e-7 * pairs
    return total


def machine(**limits):
    sizes = {"num_blocks": 700, "block_size": 16, "max_length": 5000, "max_running": 8, "chunk_tokens": CHUNK}
    return Worker(**(sizes | {"tpot": TPOT} | limits))


def warmed(streams=0, **limits):
    """One that has computed a first prompt, when nothing else was there, and some decodes; and decodes streams now."""
    worker = machine(**limits)
    worker.add(ask(1500, 100_000, max_tokens=6))
    while not worker.idle:
        step(worker)
    decode(worker, streams)
    return worker


def step(worker, **machine):
    """One step in the time that it takes there: seconds, decode rows, prompt tokens."""
    batch = worker.begin()
    took = seconds(batch, **machine)
    worker.now += took
    worker.end()
    sizes = [len(row.tokens) for row in batch.rows]
    return took, sizes.count(1), sum(size for size in sizes if size > 1)


def decode(worker, streams):
    worker.add_all(ask(20, 1000 * stream, max_tokens=900) for stream in range(streams))
    while streams and step(worker)[2]:
        pass


def prefill(worker, start=200_000):
    """The steps in which a long prompt is computed."""
    long = worker.add(ask(PROMPT, start, max_tokens=2))
    steps = []
    while not long.outputs:
        steps.append(step(worker))
    return steps


@pytest.mark.parametrize("streams", [1, 4])
def test_streams_keep_their_tpot_while_a_long_prompt_is_computed(streams):
    worker = warmed(streams)
    steps = prefill(worker)
    assert all(rows == streams for _, rows, _ in steps)  # nobody waits for a prompt
    assert max(took for took, _, _ in steps) <= 1.01 * STEP_TARGET * TPOT
    full = steps[:-1]
    assert min(took for took, _, _ in full) > 0.75 * STEP_TARGET * TPOT  # and prompts get the rest of it
    assert steps[0][2] > 1.5 * full[-1][2]  # chunks become smaller with their context


@pytest.mark.parametrize(("streams", "given", "most"), [(0, 0.2, 0.2), (4, 0.05, 0.05), (4, 0.5, STEP_TARGET * TPOT)])
def test_prompts_keep_to_the_time_slice_of_their_step(streams, given, most):
    worker = warmed(streams)
    prefill(worker)
    step(worker)  # its last token
    worker.add(ask(PROMPT, 300_000, max_tokens=2))
    batch = worker.begin(seconds=given)
    assert 0.75 * most < seconds(batch) < 1.01 * most
    worker.end()


def test_the_pace_of_a_worker_follows_from_its_steps():
    worker = warmed()
    assert not worker.scheduler.runnable
    assert (worker.scheduler.pace.slack, worker.scheduler.pace.pause) == (inf, inf)
    decode(worker, 4)
    for _ in range(40):
        step(worker)
    pace = worker.scheduler.pace
    assert worker.scheduler.runnable
    assert pace.decoding == pytest.approx(6e-3 + 4 * 1.5e-3, rel=0.1)
    assert pace.slack == pytest.approx(TPOT - pace.decoding)
    assert pace.pause == pytest.approx(2 * pace.decoding)
    worker.add(ask(PROMPT, 200_000, max_tokens=2))
    assert (pace.prompts, worker.scheduler.pace.prompts) == (0, 1)
    assert worker.scheduler.pace.slack == pytest.approx((TPOT - pace.decoding) / 2)  # the rest is its own prompt's


def test_when_nothing_decodes_chunks_have_their_full_size():
    worker = warmed()
    assert [tokens for _, _, tokens in prefill(worker)] == [CHUNK] * 7 + [PROMPT - 7 * CHUNK]


@pytest.mark.parametrize(("tpot", "paused"), [(TPOT, True), (float("inf"), False)], ids=["it is paused", "no TPOT"])
def test_chunks_have_their_full_size_beside_a_stream_without_a_tpot_to_keep(tpot, paused):
    worker = machine(tpot=tpot)
    worker.add(slow := ask(20, 0, max_tokens=900))
    step(worker)
    if paused:
        worker.pause(slow)
    assert prefill(worker)[0][1:] == (not paused, CHUNK)


def test_a_prompt_with_too_much_context_for_the_rest_of_a_step_begins_in_the_next_one():
    worker = warmed()
    prefill(worker)  # its prefix is cached from here on
    decode(worker, 2)
    worker.add(ask(150, 300_000, max_tokens=2))  # leaves 14 ms
    worker.add(known := Client((*prompt(3900, 200_000), *prompt(100, 0)), max_tokens=2))
    assert step(worker)[2] == 150
    while not known.complete:
        step(worker)


def test_decodes_with_much_context_leave_less_time():
    """A sequence of 3,000 tokens takes 67 ms a step there, a short one 8 ms."""
    worker, slow = machine(), {"per_context": 2e-5}
    for length, decodes in ((20, 60), (3000, 5)):
        worker.add(ask(length, 100_000 * length, max_tokens=900))
        while step(worker, **slow)[2]:
            pass
        for _ in range(decodes):
            step(worker, **slow)
        if length == 20:
            worker.cancel(*worker.clients.values())
    worker.add(ask(PROMPT, 0, max_tokens=2))
    assert max(step(worker, **slow)[0] for _ in range(5)) <= TPOT


def test_a_prefill_for_a_hand_off_does_not_decode():
    """Its last token is not a stream that a chunk in the same step would slow down."""
    worker = machine(role="prefill")
    worker.add(ask(CHUNK + 1, 0), room=1)
    step(worker)
    worker.add(ask(PROMPT, 10_000), room=2)
    assert step(worker)[2] == CHUNK


def test_a_sequence_on_its_way_is_to_decode_as_soon_as_it_comes():
    """A decode worker that helps with prompts: a step as long as a whole chunk takes would hold it up."""
    worker = warmed()
    alone = max(tokens for _, _, tokens in prefill(worker))
    worker.reserve(ask(20, 900_000))
    steps = prefill(worker, start=300_000)
    assert alone == CHUNK
    assert all(LEAST_CHUNK <= tokens < CHUNK for _, _, tokens in steps[:-1])
    assert max(took for took, _, _ in steps) <= 1.2 * TPOT


@pytest.mark.parametrize(("tpot", "tokens"), [(0.012, LEAST_CHUNK), (0.005, LATE_CHUNK)], ids=["full", "late"])
def test_short_prompts_share_what_a_step_without_room_computes_in_any_case(tpot, tokens):
    worker = warmed(2, tpot=tpot, max_running=12)
    worker.add_all(ask(5, 200_000 + 10 * each, max_tokens=2) for each in range(20))
    assert step(worker)[2] == tokens
