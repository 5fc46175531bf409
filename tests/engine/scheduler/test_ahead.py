"""Steps that are launched before the output of the one before them is known."""

import pytest
from msgspec.structs import replace
from scheduled_worker import Worker, ask

from legato_engine.scheduler.planning.planner import MOST_EXAMINED
from legato_engine.scheduler.requests.request import RequestState
from legato_engine.scheduler.scheduler import MOST_AHEAD

OTHER = 30  # where another prompt starts


def decoding(worker, *clients, **params):
    """Their prompts are computed, and a step that decodes is in flight."""
    requests = [worker.add(client, **params) for client in clients]
    worker.step()
    assert worker.begin()
    assert all(len(row.tokens) == 1 for row in worker.flight.rows)
    return requests


def run(worker, *complete, compute=True):
    """Runs to the end, a step ahead where that is possible; the number of steps ahead."""
    ahead = 0
    while worker.flight is not None or worker.begin(compute):
        if worker.next is None:
            ahead += worker.begin_ahead(compute) is not None
        worker.end()
    assert all(client.complete for client in complete)
    return ahead


@pytest.mark.parametrize("compute", [True, False])
def test_every_token_but_the_first_and_last_is_ahead(compute):
    worker, clients = Worker(), [ask(6, max_tokens=9, seed=seed) for seed in range(3)]
    worker.add_all(clients)
    assert run(worker, *clients, compute=compute) >= 7


def test_tokens_are_named_by_their_draw():
    worker = Worker()
    decoding(worker, *[ask(6, 10 * n, seed=n) for n in range(2)])
    found = [(row.tokens, row.start, row.draws[0].position) for row in worker.begin_ahead().rows]
    before = enumerate(worker.flight.rows, 1)
    assert found == [((-number,), row.start + 1, row.draws[0].position + 1) for number, row in before]


def test_draws_of_the_step_are_counted_not_its_rows():
    """Also draws of a prompt of several choices that is cancelled meanwhile."""
    worker, client = Worker(chunk_tokens=6), ask(6, max_tokens=9)
    worker.add(client)
    worker.step()
    worker.add(several := ask(10, OTHER, choices=(0, 1, 2)), priority=1)
    worker.step()
    assert [len(row.draws) for row in worker.begin().rows] == [3, 1]
    worker.cancel(several)
    assert [row.tokens for row in worker.begin_ahead().rows] == [(-4,)]
    run(worker, client)


def test_there_is_one_step_ahead_at_most():
    worker = Worker()
    assert worker.scheduler.schedule_ahead(0.0) is None
    decoding(worker, ask(6))
    assert worker.begin_ahead()
    assert worker.scheduler.schedule_ahead(0.0) is None
    with pytest.raises(RuntimeError, match="in flight"):
        worker.scheduler.schedule(0.0)
    with pytest.raises(ValueError, match="not the first step"):
        worker.scheduler.process(worker.next, (), 0.0)


def test_one_that_reaches_its_length_gets_no_row():
    worker, short, long = Worker(), ask(6, max_tokens=2), ask(6, OTHER, max_tokens=9)
    decoding(worker, short, long)
    assert len(worker.begin_ahead().rows) == 1
    run(worker, short, long)


def test_one_that_stops_has_an_unused_row_and_keeps_its_blocks_until_then():
    stop = ask(6, max_tokens=9).expected[0][1]
    worker, client = Worker(), ask(6, max_tokens=9, stop=(stop,))
    (request,) = decoding(worker, client)
    blocks = list(request.blocks)
    worker.begin_ahead(compute=False)
    worker.end()
    assert (client.complete, request.state) == (True, RequestState.ENDED)
    assert all(worker.pool.references(block) for block in blocks)
    worker.end()
    assert (worker.idle, worker.counts.used) == (True, 0)


READING = {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1, "bad_words": ((1, 2),)}


@pytest.mark.parametrize(("name", "value"), [*READING.items(), ("min_tokens", 5)])
def test_a_draw_whose_parameters_read_tokens_waits_for_them(name, value):
    worker, client = Worker(), ask(6, max_tokens=9)
    decoding(worker, client, params=replace(client.params, **{name: value}))
    assert worker.begin_ahead() is None
    assert run(worker, client) == (3 if name == "min_tokens" else 0)


def test_a_grammar_needs_the_token():
    worker, client = Worker(), ask(6, max_tokens=9)
    decoding(worker, client, grammar=object())
    assert worker.begin_ahead() is None


@pytest.mark.parametrize("client", [ask(6, max_tokens=9, choices=(0, 1, 2)), ask(13)], ids=["forks", "goes on"])
def test_a_prompt_that_forks_or_goes_on_is_planned_as_usual(client):
    worker = Worker(chunk_tokens=12)
    worker.add(client)
    worker.begin()
    assert worker.begin_ahead() is None
    worker.end()
    worker.begin()
    assert worker.begin_ahead()
    run(worker, client)


def test_one_that_comes_starts_with_the_next_step():
    worker = Worker()
    decoding(worker, ask(6, max_tokens=30))
    assert worker.begin_ahead()
    worker.end()
    worker.add(late := ask(6, max_tokens=2))
    assert worker.begin_ahead() is None
    worker.end()
    assert len(worker.begin().rows) == 2
    run(worker, late)


def test_those_that_cannot_start_hold_nobody_up():
    worker, clients = Worker(max_running=1), (ask(6, max_tokens=12), ask(6, max_tokens=3))
    worker.add_all(clients)
    assert run(worker, *clients) >= 10


def test_prompts_that_wait_for_room_in_a_step_are_in_the_next_one():
    """Each fills a step to its last token, so that none goes on and all that run decode."""
    worker = Worker(chunk_tokens=6, num_blocks=64)
    worker.add_all(ask(6, 10 * n, max_tokens=30, seed=n) for n in range(6))
    run(worker)
    prompts = [sum(len(row.tokens) for row in batch.rows if len(row.tokens) > 1) for batch in worker.batches]
    assert prompts == [6] * 6 + [0] * (len(prompts) - 6)


def test_more_than_one_step_starts_are_in_the_next_ones():
    worker = Worker(num_blocks=1000, chunk_tokens=1000, max_running=3 * MOST_EXAMINED)
    worker.add_all(ask(3, 10 * n, max_tokens=8, seed=n) for n in range(3 * MOST_EXAMINED))
    run(worker)
    assert [len(batch.rows) // MOST_EXAMINED for batch in worker.batches[:5]] == [1, 2, 3, 3, 3]


def test_one_that_waits_for_the_prefix_of_another_starts_when_that_is_computed():
    worker = Worker()
    worker.add_all(ask(13, max_tokens=30, seed=seed) for seed in range(2))
    run(worker)
    assert [[len(row.tokens) for row in batch.rows] for batch in worker.batches[:3]] == [[13], [1, 1], [1, 1]]


def test_one_that_waits_is_tried_again():
    """It may start for a reason that nobody counts, such as the end of its pause."""
    worker = Worker()
    decoding(worker, ask(6, max_tokens=50))
    worker.end()
    worker.add(paused := ask(6, max_tokens=2))
    worker.pause(paused)
    worker.begin()
    worker.resume(paused)
    steps = 0
    while worker.begin_ahead():
        worker.end()
        steps += 1
    assert steps == MOST_AHEAD
    worker.end()
    assert len(worker.begin().rows) == 2


def arriving(receiver):
    """One that comes by hand-off while a step is in flight, and its request."""
    sender, client = Worker(), ask(6, OTHER, max_tokens=6)
    request = sender.add(client, room=1)
    incoming = receiver.granted(client)
    sender.grant(request, len(incoming.blocks))
    sender.step()
    sender.hand_over(request, receiver, incoming)
    return client, receiver.scheduler.requests(client.id)[0]


def test_a_sequence_that_arrives_joins_the_step_ahead():
    receiver, first = Worker(), ask(6, max_tokens=20)
    decoding(receiver, first)
    second, _ = arriving(receiver)
    rows = receiver.begin_ahead().rows
    assert sorted(row.tokens[0] >= 0 for row in rows) == [False, True]
    run(receiver, first, second)


def test_a_migration_waits_for_both_steps():
    worker, client = Worker(), ask(6, max_tokens=20)
    (request,) = decoding(worker, client)
    worker.migrate(request, blocks=10)
    worker.begin_ahead()
    assert worker.finish(request) is None
    worker.end()
    assert worker.finish(request) is None
    assert worker.begin_ahead() is None
    worker.end()
    kv = worker.finish(request)
    assert (kv.token_ids, kv.computed) == (tuple(request.tokens), len(request.tokens) - 1)


def twins(max_tokens):
    """A worker, and two clients that ask for the same."""
    worker, clients = Worker(), [ask(6, max_tokens=max_tokens, seed=1) for _ in range(2)]
    for client in clients:
        worker.add(client)
        worker.step()
    return worker, clients


def test_a_block_that_another_had_first_is_read_until_the_step_ends():
    """Two compute the same: the second gives a full block up for the first one's, while a step in flight reads it."""
    worker, clients = twins(12)
    second = worker.scheduler.requests(clients[1].id)[0]
    given_up = []
    while worker.flight is not None or worker.begin():
        worker.begin_ahead()
        before = list(second.blocks)
        worker.end()
        gone = [block for block, now in zip(before, second.blocks, strict=False) if block != now]
        assert all(worker.pool.references(block) for block in gone)
        given_up += gone
    assert given_up
    assert worker.counts.used == 0
    assert all(client.complete for client in clients)


def test_blocks_that_were_given_up_are_not_kept_as_long_as_there_is_a_step_ahead():
    """There is always one, and the sequence always has a row in it."""
    worker, clients = twins(40)
    while not all(client.complete for client in clients):
        if worker.flight is None:
            worker.begin()
        worker.begin_ahead()
        worker.end()
        requests = [request for client in clients for request in worker.scheduler.requests(client.id)]
        needed = len({block for request in requests for block in request.blocks})
        assert worker.counts.used <= needed + 2 * len(clients)


def test_seconds_count_from_the_end_of_the_step_before():
    """Else each step would seem to take as long as two."""
    worker = Worker()
    worker.add(ask(15, max_tokens=40))
    worker.step()
    worker.begin()
    while worker.flight is not None:
        worker.begin_ahead()
        worker.now += 0.1
        worker.end()
    cost = worker.load.decode_cost
    assert cost.per_step + cost.per_row + 15 * cost.per_context == pytest.approx(0.1, rel=0.05)
