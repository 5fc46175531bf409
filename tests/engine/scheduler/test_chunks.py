"""Chunks by time, on a machine whose steps take what a formula says: streams keep their TPOT beside long prompts."""

import pytest

from legato_engine.scheduler.chunk_budget import LATE_CHUNK, LEAST_CHUNK
from legato_engine.scheduler.request import RequestState

TPOT, PROMPT, CHUNK = 0.1, 4000, 512


def seconds(batch, per_context=2e-7):
    """A machine that computes a prompt's first 512 tokens in 0.28 s and its last ones in 0.56 s."""
    total = 6e-3
    for row in batch.rows:
        pairs = len(row.tokens) * (row.start + len(row.tokens) / 2)
        total += 1.5e-3 + per_context * row.start if len(row.tokens) == 1 else 5e-4 * len(row.tokens) + 1.5e-7 * pairs
    return total


@pytest.fixture
def make_machine(make_worker):
    def make(**limits):
        sizes = {"num_blocks": 700, "block_size": 16, "max_length": 5000, "max_running": 8, "chunk_tokens": CHUNK}
        return make_worker(**sizes, **({"tpot": TPOT} | limits))

    return make


def step(worker, **machine):
    """One step in the time that it takes there: seconds, decode rows, prompt tokens."""
    batch = worker.begin()
    took = seconds(batch, **machine)
    worker.now += took
    worker.end()
    sizes = [len(row.tokens) for row in batch.rows]
    return took, sizes.count(1), sum(size for size in sizes if size > 1)


def prompt(length, start):
    return tuple(range(start, start + length))


def warm(worker, make_client):
    """A first prompt, when nothing else is there, and some decodes."""
    worker.add(make_client(prompt(1500, 100_000), max_tokens=6))
    while not worker.scheduler.idle:
        step(worker)


def decode(worker, make_client, streams):
    for stream in range(streams):
        worker.add(make_client(prompt(20, 1000 * stream), max_tokens=900))
    while step(worker)[2]:
        pass


def prefill(worker, make_client, start=200_000):
    """The steps in which a long prompt is computed."""
    long = worker.add(make_client(prompt(PROMPT, start), max_tokens=2))
    steps = []
    while not long.outputs:
        steps.append(step(worker))
    return steps


@pytest.mark.parametrize("streams", [1, 4])
def test_streams_keep_their_tpot_while_a_long_prompt_is_computed(make_machine, make_client, streams):
    worker = make_machine()
    warm(worker, make_client)
    decode(worker, make_client, streams)
    steps = prefill(worker, make_client)
    assert all(rows == streams for _, rows, _ in steps)  # nobody waits for a prompt
    assert max(took for took, _, _ in steps) <= TPOT
    full = steps[:-1]
    assert min(took for took, _, _ in full) > 0.75 * TPOT  # and prompts get the rest of it
    assert steps[0][2] > 1.5 * full[-1][2]  # chunks become smaller with their context


def test_a_worker_that_never_computed_a_prompt_begins_with_small_chunks(make_machine, make_client):
    worker = make_machine()
    decode(worker, make_client, 2)
    steps = prefill(worker, make_client)
    assert steps[0][2] == LATE_CHUNK
    assert max(took for took, _, _ in steps) <= TPOT
    assert len(steps) < 60


def test_when_nothing_decodes_chunks_have_their_full_size(make_machine, make_client):
    worker = make_machine()
    warm(worker, make_client)
    assert [tokens for _, _, tokens in prefill(worker, make_client)] == [CHUNK] * 7 + [PROMPT - 7 * CHUNK]


def test_a_paused_stream_keeps_no_tpot(make_machine, make_client):
    worker = make_machine()
    slow = make_client(prompt(20, 0), max_tokens=900)
    worker.add(slow)
    step(worker)
    worker.scheduler.pause(slow.id, 1, True)
    assert prefill(worker, make_client)[0][2] == CHUNK


def test_without_a_tpot_chunks_have_their_full_size_beside_decodes(make_machine, make_client):
    worker = make_machine(tpot=float("inf"))
    decode(worker, make_client, 2)
    assert prefill(worker, make_client)[0][1:] == (2, CHUNK)


def test_prompts_advance_although_decodes_alone_take_longer(make_machine, make_client):
    worker = make_machine(tpot=0.005)
    warm(worker, make_client)
    decode(worker, make_client, 4)
    alone, steps = step(worker)[0], prefill(worker, make_client)
    assert all(LEAST_CHUNK < tokens <= LATE_CHUNK for _, _, tokens in steps[:-1])
    least = alone + LEAST_CHUNK * (5e-4 + 1.5e-7 * PROMPT)
    assert max(took for took, _, _ in steps) < 2 * least


def test_several_prompts_share_the_time_of_a_step(make_machine, make_client):
    worker = make_machine()
    warm(worker, make_client)
    decode(worker, make_client, 2)
    requests = [worker.add(make_client(prompt(70, 300_000 + 1000 * n), max_tokens=2)) for n in range(4)]
    took, _, tokens = step(worker)
    assert took <= TPOT
    assert 70 < tokens < 3 * 70
    assert requests[-1].state is RequestState.WAITING


def test_a_prompt_with_too_much_context_for_the_rest_of_a_step_begins_in_the_next_one(make_machine, make_client):
    worker = make_machine()
    warm(worker, make_client)
    prefill(worker, make_client)  # its prefix is cached from here on
    decode(worker, make_client, 2)
    worker.add(make_client(prompt(150, 300_000), max_tokens=2))  # leaves 14 ms
    known = make_client((*prompt(3900, 200_000), *prompt(100, 0)), max_tokens=2)
    worker.add(known)
    assert step(worker)[2] == 150
    while not known.complete:
        step(worker)


def test_decodes_with_much_context_leave_less_time(make_machine, make_client):
    """A sequence of 3,000 tokens takes 67 ms a step there, a short one 8 ms."""
    worker, machine = make_machine(), {"per_context": 2e-5}
    for length, decodes in ((20, 60), (3000, 5)):
        worker.add(make_client(prompt(length, 100_000 * length), max_tokens=900))
        while step(worker, **machine)[2]:
            pass
        for _ in range(decodes):
            step(worker, **machine)
        if length == 20:
            worker.cancel(*worker.clients.values())
    worker.add(make_client(prompt(PROMPT, 0), max_tokens=2))
    assert max(step(worker, **machine)[0] for _ in range(5)) <= TPOT


def test_what_prefills_for_a_hand_off_does_not_decode(make_machine, make_client):
    """Its last token alone is no stream that a chunk beside it would slow down."""
    worker = make_machine(role="prefill")
    worker.add(make_client(prompt(CHUNK + 1, 0)), room=1)
    step(worker)
    worker.add(make_client(prompt(PROMPT, 10_000)), room=2)
    assert step(worker)[2] == CHUNK


def test_a_sequence_on_its_way_is_to_decode_as_soon_as_it_comes(make_machine, make_client):
    """A decode worker that helps with prompts: a step as long as a whole chunk takes would hold it up."""
    worker = make_machine()
    warm(worker, make_client)
    alone = max(tokens for _, _, tokens in prefill(worker, make_client))
    worker.reserve(make_client(prompt(20, 900_000)).request(room=1), worker.now)
    steps = prefill(worker, make_client, start=300_000)
    assert alone == CHUNK
    assert all(LEAST_CHUNK <= tokens < CHUNK for _, _, tokens in steps[:-1])
    assert max(took for took, _, _ in steps) <= 1.2 * TPOT
