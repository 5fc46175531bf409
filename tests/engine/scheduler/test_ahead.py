"""Steps that are launched before the output of the one before them is known."""

import pytest
from msgspec.structs import replace

from legato_engine.scheduler.request import RequestState
from legato_engine.scheduler.scheduler import MOST_AHEAD

PROMPT = tuple(range(6))
OTHER = tuple(range(30, 36))


def decoding(worker, *clients, **params):
    """Their prompts are computed, and a step that decodes is in flight."""
    requests = [worker.add(client, **params) for client in clients]
    worker.step()
    assert worker.begin()
    assert all(len(row.tokens) == 1 for row in worker.flight.rows)
    return requests


def run(worker):
    """To the end, a step ahead where that is possible; how many were."""
    ahead = 0
    while worker.flight is not None or worker.begin():
        if worker.next is None:
            ahead += worker.begin_ahead() is not None
        worker.end()
    return ahead


@pytest.mark.parametrize("compute", [True, False])
def test_every_token_but_the_first_and_last_is_ahead(make_worker, make_client, compute):
    worker, clients = make_worker(), [make_client(PROMPT, max_tokens=9, seed=seed) for seed in range(3)]
    for client in clients:
        worker.add(client)
    steps = 0
    while worker.flight is not None or worker.begin(compute):
        if worker.next is None:
            steps += worker.begin_ahead(compute) is not None
        worker.end()
    assert all(client.complete for client in clients)
    assert steps >= 7


def test_tokens_are_named_by_their_draw(make_worker, make_client):
    worker = make_worker()
    decoding(worker, *[make_client(tuple(range(10 * n, 10 * n + 6)), seed=n) for n in range(2)])
    rows = worker.begin_ahead().rows
    assert [row.tokens for row in rows] == [(-1,), (-2,)]
    assert [row.start for row in rows] == [row.start + 1 for row in worker.flight.rows]
    assert [row.draws[0].position for row in rows] == [row.draws[0].position + 1 for row in worker.flight.rows]


def test_draws_of_the_step_are_counted_not_its_rows(make_worker, make_client):
    """Also those of a prompt of several choices that is cancelled meanwhile."""
    worker, client = make_worker(chunk_tokens=6), make_client(PROMPT, max_tokens=9)
    worker.add(client)
    worker.step()
    worker.add(several := make_client(tuple(range(30, 40)), choices=(0, 1, 2)), priority=1)
    worker.step()
    assert [len(row.draws) for row in worker.begin().rows] == [3, 1]
    worker.cancel(several)
    assert [row.tokens for row in worker.begin_ahead().rows] == [(-4,)]
    run(worker)
    assert client.complete


def test_there_is_one_step_ahead_at_most(make_worker, make_client):
    worker = make_worker()
    assert worker.scheduler.schedule_ahead(0.0) is None
    decoding(worker, make_client(PROMPT))
    assert worker.begin_ahead()
    assert worker.scheduler.schedule_ahead(0.0) is None
    with pytest.raises(RuntimeError, match="in flight"):
        worker.scheduler.schedule(0.0)
    with pytest.raises(ValueError, match="not the first step"):
        worker.scheduler.process(worker.next, (), 0.0)


def test_one_that_reaches_its_length_gets_no_row(make_worker, make_client):
    worker, short, long = make_worker(), make_client(PROMPT, max_tokens=2), make_client(OTHER, max_tokens=9)
    decoding(worker, short, long)
    assert len(worker.begin_ahead().rows) == 1
    run(worker)
    assert short.complete
    assert long.complete


def test_one_that_stops_has_a_row_for_nothing_and_keeps_its_blocks_until_then(make_worker, make_client):
    reference = make_client(PROMPT, max_tokens=9)
    stop = reference.expected[0][1]
    worker, client = make_worker(), make_client(PROMPT, max_tokens=9, stop=(stop,))
    (request,) = decoding(worker, client)
    blocks = list(request.blocks)
    worker.begin_ahead(compute=False)
    worker.end()
    assert client.complete
    assert request.state is RequestState.ENDED
    assert all(worker.pool.references(block) for block in blocks)
    worker.end()
    assert worker.scheduler.idle
    assert worker.pool.counts().used == 0


@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"bad_words": ((1, 2),)},
        {"min_tokens": 5},
    ],
)
def test_what_reads_tokens_is_not_drawn_without_them(make_worker, make_client, params):
    worker, client = make_worker(), make_client(PROMPT, max_tokens=9)
    decoding(worker, client, params=replace(client.params, **params))
    assert worker.begin_ahead() is None
    assert run(worker) == (3 if "min_tokens" in params else 0)
    assert client.complete


def test_a_grammar_needs_the_token(make_worker, make_client):
    worker, client = make_worker(), make_client(PROMPT, max_tokens=9)
    decoding(worker, client, grammar=object())
    assert worker.begin_ahead() is None


def test_several_choices_fork_first(make_worker, make_client):
    worker, client = make_worker(), make_client(PROMPT, max_tokens=9, choices=(0, 1, 2))
    worker.add(client)
    worker.begin()
    assert worker.begin_ahead() is None
    worker.end()
    worker.begin()
    assert worker.begin_ahead()
    run(worker)
    assert client.complete


def test_a_prompt_that_goes_on_is_planned_as_usual(make_worker, make_client):
    worker = make_worker(chunk_tokens=4)
    worker.add(make_client(tuple(range(13))))
    worker.begin()
    assert worker.begin_ahead() is None


def test_nobodys_blocks_are_taken(make_worker, make_client):
    """Blocks are short: a step that is planned as usual preempts."""
    worker = make_worker(num_blocks=4, growth_tokens=0)
    clients = [make_client(tuple(range(n, n + 7)), max_tokens=8, seed=n) for n in (0, 20)]
    for client in clients:
        worker.add(client)
    run(worker)
    assert worker.scheduler.load().preemptions
    assert all(client.complete for client in clients)


def test_one_that_comes_starts_with_the_next_step(make_worker, make_client):
    worker = make_worker()
    decoding(worker, make_client(PROMPT, max_tokens=30))
    assert worker.begin_ahead()
    worker.end()
    worker.add(late := make_client(PROMPT, max_tokens=2))
    assert worker.begin_ahead() is None
    worker.end()
    assert len(worker.begin().rows) == 2
    run(worker)
    assert late.complete


def test_those_that_cannot_start_hold_nobody_up(make_worker, make_client):
    worker = make_worker(max_running=1)
    worker.add(first := make_client(PROMPT, max_tokens=12))
    worker.add(second := make_client(PROMPT, max_tokens=3))
    assert run(worker) >= 10
    assert first.complete
    assert second.complete


def test_prompts_that_wait_for_room_in_a_step_are_in_the_next_one(make_worker, make_client):
    """Each fills a step to its last token, so that none goes on and all that run decode."""
    worker = make_worker(chunk_tokens=6, num_blocks=64)
    for n in range(6):
        worker.add(make_client(tuple(range(10 * n, 10 * n + 6)), max_tokens=30, seed=n))
    run(worker)
    prompts = [sum(len(row.tokens) for row in batch.rows if len(row.tokens) > 1) for batch in worker.batches]
    assert prompts[:6] == [6] * 6
    assert not any(prompts[6:])


def test_one_that_waits_for_the_prefix_of_another_starts_when_that_is_computed(make_worker, make_client):
    worker = make_worker()
    for seed in range(2):
        worker.add(make_client(tuple(range(13)), max_tokens=30, seed=seed))
    run(worker)
    assert [[len(row.tokens) for row in batch.rows] for batch in worker.batches[:3]] == [[13], [1, 1], [1, 1]]


def test_one_that_waits_is_looked_at_again(make_worker, make_client):
    """It may start for a reason that nobody counts, such as the end of its pause."""
    worker = make_worker()
    decoding(worker, make_client(PROMPT, max_tokens=50))
    worker.end()
    worker.add(paused := make_client(PROMPT, max_tokens=2))
    worker.scheduler.pause(paused.id, 1, True)
    worker.begin()
    worker.scheduler.pause(paused.id, 1, False)
    steps = 0
    while worker.begin_ahead():
        worker.end()
        steps += 1
    assert steps == MOST_AHEAD
    worker.end()
    assert len(worker.begin().rows) == 2


def arriving(make_worker, make_client, receiver):
    """One that comes by hand-off while a step is in flight, and its request."""
    sender, client = make_worker(), make_client(OTHER, max_tokens=6)
    request = sender.add(client, room=1)
    receiver.clients[client.id] = client
    incoming = receiver.reserve(client.request(room=1), 0.0)
    receiver.scheduler.incoming.grants()
    sender.grant(request, len(incoming.blocks))
    sender.step()
    kv = sender.finish(request)
    sender.transfer(kv.blocks, receiver, incoming)
    sampled = {choice: (token,) for choice, token in request.first.items()}
    receiver.deliver(receiver.scheduler.incoming.adopt(incoming, kv.computed, sampled))
    return client, receiver.scheduler.requests(client.id)[0]


def test_a_sequence_that_arrives_joins_the_step_ahead(make_worker, make_client):
    receiver, first = make_worker(), make_client(PROMPT, max_tokens=20)
    decoding(receiver, first)
    second, _ = arriving(make_worker, make_client, receiver)
    rows = receiver.begin_ahead().rows
    assert sorted(row.tokens[0] >= 0 for row in rows) == [False, True]
    run(receiver)
    assert first.complete
    assert second.complete


def test_a_step_ahead_keeps_the_blocks_of_those_that_it_alone_has(make_worker, make_client):
    receiver = make_worker()
    decoding(receiver, make_client(PROMPT, max_tokens=20))
    second, request = arriving(make_worker, make_client, receiver)
    receiver.begin_ahead(compute=False)
    last = request.blocks[-1]
    receiver.cancel(second)
    receiver.end()
    assert receiver.pool.references(last)
    receiver.end()
    assert not receiver.pool.references(last)


def test_a_migration_waits_for_both_steps(make_worker, make_client):
    worker, client = make_worker(), make_client(PROMPT, max_tokens=20)
    (request,) = decoding(worker, client)
    worker.migrate(request, blocks=10)
    worker.begin_ahead()
    assert worker.finish(request) is None
    worker.end()
    assert worker.finish(request) is None
    assert worker.begin_ahead() is None
    worker.end()
    kv = worker.finish(request)
    assert kv.token_ids == tuple(request.tokens)
    assert kv.computed == len(kv.token_ids) - 1


def test_a_block_that_another_had_first_is_read_until_the_step_ends(make_worker, make_client):
    """Two compute the same: the second gives a full block up for the first one's, while a step in flight reads it."""
    worker = make_worker()
    clients = [make_client(PROMPT, max_tokens=12, seed=1) for _ in range(2)]
    for client in clients:
        worker.add(client)
        worker.step()
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
    assert worker.pool.counts().used == 0
    assert all(client.complete for client in clients)


def test_what_was_given_up_is_not_kept_as_long_as_there_is_a_step_ahead(make_worker, make_client):
    """There is always one, and the sequence always has a row in it."""
    worker = make_worker()
    clients = [make_client(PROMPT, max_tokens=40, seed=1) for _ in range(2)]
    for client in clients:
        worker.add(client)
        worker.step()
    while not all(client.complete for client in clients):
        if worker.flight is None:
            worker.begin()
        worker.begin_ahead()
        worker.end()
        requests = [request for client in clients for request in worker.scheduler.requests(client.id)]
        needed = len({block for request in requests for block in request.blocks})
        assert worker.pool.counts().used <= needed + 2 * len(clients)


def test_seconds_count_from_the_end_of_the_step_before(make_worker, make_client):
    """Else each step would seem to take as long as two."""
    worker = make_worker()
    worker.add(make_client(tuple(range(15)), max_tokens=40))
    worker.step()
    worker.begin()
    while worker.flight is not None:
        worker.begin_ahead()
        worker.now += 0.1
        worker.end()
    cost = worker.scheduler.load().decode_cost
    assert cost.per_step + cost.per_row + 15 * cost.per_context == pytest.approx(0.1, rel=0.05)
