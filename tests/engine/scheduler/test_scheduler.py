"""Batching on one worker: chunks, prefix cache, forks, preemption, order, and ends of every kind."""

import pytest
from scheduled_worker import Client, Worker, ask, prompt

from legato_engine.scheduler.requests.limits import RequestRejected
from legato_engine.scheduler.requests.request import RequestState
from legato_protocol.sampling.parameters import SamplingParams


@pytest.mark.parametrize(
    ("most", "clients", "expected"),
    [
        (8, [ask(7, start, max_tokens=1) for start in range(0, 500, 100)], [8, 8, 8, 8, 3]),
        (1, [ask(5, max_tokens=2)], [1] * 6),
    ],
)
def test_chunk_tokens_bound_the_prompt_tokens_of_a_step(most, clients, expected):
    worker = Worker(chunk_tokens=most)
    worker.add_all(clients)
    worker.run(*clients)
    assert [sum(len(row.tokens) for row in batch.rows) for batch in worker.batches] == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0, 0, [14, 6, 1, 1]),
        (1, 0, [8, 8, 4, 1]),  # one decodes alongside
        (0, 1, [14, 6, 8, 2]),  # one waits from the second step on
    ],
)
def test_a_prompt_alone_may_have_longer_chunks(before, after, expected):
    worker = Worker(chunk_tokens=8, lone_chunk=14)
    worker.add_all(ask(5, 500, max_tokens=6) for _ in range(before))
    worker.steps(before)
    worker.add(ask(20, max_tokens=3))
    worker.step()
    worker.add_all(ask(12, 700, max_tokens=3) for _ in range(after))
    worker.run()
    assert [max(len(row.tokens) for row in batch.rows) for batch in worker.batches[before : before + 4]] == expected


@pytest.mark.parametrize(
    ("first", "tokens", "fields", "cached"),
    [
        (ask(14), (*prompt(12), 77, 78), {}, 12),
        (ask(8), prompt(8), {}, 4),
        (answered := ask(6, max_tokens=7), (*answered.prompt, *answered.expected[0], 5), {}, 12),
        (ask(12), prompt(12), {"cache_salt": "other"}, 0),
        (ask(12), prompt(12), {"adapter": "other"}, 0),
    ],
    ids=["prefix", "all but the last token", "answer", "salt", "adapter"],
)
def test_a_known_prefix_is_not_computed_again(first, tokens, fields, cached):
    worker = Worker()
    worker.add(first)
    worker.run(first)
    request = worker.add(again := Client(tokens), **fields)
    worker.begin()
    assert (worker.batches[-1].rows[0].start, request.computed, request.cached_tokens) == (cached, cached, cached)
    worker.end()
    assert request.stored == len(tokens) // 4
    worker.run(again)


def test_only_the_prompt_of_a_sequence_that_goes_on_here_counts_as_cached():
    worker = Worker()
    worker.add(ask(12))
    worker.run()
    request = worker.add(ask(12, max_tokens=9), prompt_len=6)
    worker.begin()
    assert (request.computed, request.cached_tokens) == (8, 6)


def test_a_prefix_in_flight_is_computed_once():
    worker = Worker(chunk_tokens=8)
    clients = [Client((*prompt(20), 100 + i)) for i in range(4)]
    worker.add_all(clients)
    worker.run(*clients)
    prompt_rows = [row for batch in worker.batches for row in batch.rows if row.start < 20]
    assert sum(min(len(row.tokens), 20 - row.start) for row in prompt_rows) == 20


def test_nobody_waits_for_a_prefix_whose_owner_stopped():
    """Also when it comes back: only blocks that it will store are announced."""
    worker = Worker(chunk_tokens=8)
    worker.add(owner := Client((*prompt(20), 1)))
    worker.step()
    assert len(worker.scheduler._tables.computing) == 3
    worker.cancel(owner)
    assert worker.scheduler._tables.computing == {}


@pytest.mark.parametrize("length", [3, 4, 5, 8, 11])
def test_choices_fork_after_the_prompt_and_share_its_blocks(length):
    worker = Worker()
    worker.add(client := ask(length, max_tokens=6, choices=(0, 1, 2)))
    worker.step()
    tables = [request.blocks[: length // 4] for request in worker.scheduler.requests(client.id)]
    assert tables == tables[:1] * 3
    worker.run(client)
    assert sum(len(batch.copies) for batch in worker.batches) == (2 if length % 4 else 0)


def test_a_fork_works_when_its_siblings_stop_at_different_times():
    worker = Worker()
    probe = ask(5, max_tokens=8, choices=(0, 1, 2))
    stops = (probe.expected[1][2], probe.expected[2][0])
    worker.add(client := ask(5, max_tokens=8, choices=(0, 1, 2), stop=stops))
    worker.run(client)
    assert set(client.finished.values()) == {"stop", "length"}


def test_max_length_ends_a_sequence():
    worker = Worker(max_length=12)
    request = worker.add(ask(10, max_tokens=2), params=SamplingParams(max_tokens=1 << 30, seed=7))
    worker.run()
    assert (request.finish, len(request.tokens)) == ("length", 12)


@pytest.mark.parametrize(
    ("length", "max_tokens", "overrides", "reason"),
    [
        (40, 30, {}, "blocks"),
        (40, 1, {"room": 1}, "blocks"),
        (64, 1, {}, "no room for output"),
        (5, 4, {"choices": tuple(range(65))}, "choices"),
        (5, 4, {"prompt_len": 1}, "exist already"),
        (5, 2, {"prompt_len": 3}, "exist already"),
        (5, 4, {"prompt_len": 0}, "a prompt of 0 tokens in 5"),
        (5, 4, {"prompt_len": 6}, "a prompt of 6 tokens in 5"),
    ],
)
def test_what_can_never_run_is_refused_at_once(length, max_tokens, overrides, reason):
    worker = Worker(num_blocks=10)
    with pytest.raises(RequestRejected, match=reason) as refusal:
        worker.add(ask(length, max_tokens=max_tokens), **overrides)
    assert (refusal.value.code, refusal.value.retry) == ("invalid", False)
    assert worker.idle


def test_what_just_fits_is_taken():
    """A prompt that leaves room for one token, and a sequence that lacks one; two in a queue of two."""
    worker = Worker(max_length=12, max_waiting=2)
    request = worker.add(ask(11, max_tokens=1))
    worker.run()
    assert len(request.tokens) == 12
    worker.add(ask(5, max_tokens=3), prompt_len=3)
    worker.add(ask(3, 1))
    with pytest.raises(RequestRejected) as refusal:
        worker.add(ask(3, 9))
    assert (refusal.value.code, refusal.value.retry) == ("overloaded", True)


def test_choices_that_are_one_sequence_still_are_not_cancelled_apart():
    worker = Worker(chunk_tokens=4)
    worker.add(client := ask(9, choices=(0, 1)))
    worker.step()
    assert worker.drop(client, 1).requests == ()
    assert len(worker.scheduler.cancel(client.id, 99, (0, 1, 5)).requests) == 1
    assert worker.idle


def test_only_older_attempts_are_cancelled():
    worker = Worker()
    worker.add(client := ask(5), attempt=3)
    assert worker.scheduler.cancel(client.id, 2).requests == ()
    worker.run(client)


def test_deadlines_end_requests():
    worker = Worker(max_running=1)
    requests = [worker.add(ask(5, i, max_tokens=30), deadline=10.0 + i) for i in range(3)]
    worker.step()
    ended = [worker.scheduler.expire(now).requests for now in (9.0, 11.0, 11.5, 12.0, 13.0)]
    assert ended == [(), tuple(requests[:2]), (), (requests[2],), ()]
    assert worker.idle


@pytest.mark.parametrize(("length", "deadline"), [(4, 1e6), (8, 8.0)], ids=["short prompts", "near deadlines"])
def test_prefill_workers_put_short_prompts_and_near_deadlines_first_but_others_run_by_and_by(length, deadline):
    worker = Worker(role="prefill", chunk_tokens=4, max_running=1)
    worker.scheduler._queue.tokens_per_second = 10.0
    worker.add(long := ask(40, max_tokens=1))
    worker.now = 3.0
    first = worker.add(client := ask(length, 100, max_tokens=1), deadline=deadline)
    worker.begin()
    assert first.state is RequestState.RUNNING
    worker.end()
    worker.run(long, client)


@pytest.mark.parametrize(("length", "uncached"), [(8, 4), (9, 1), (12, 4), (13, 1)])
def test_cached_tokens_are_not_part_of_the_queue_but_the_last_token_is(length, uncached):
    worker = Worker()
    worker.add(ask(16))
    worker.run()
    worker.add(ask(length))
    assert worker.load.queue_tokens == uncached


def test_all_rows_of_a_tenant_in_one_step_count_and_a_draw_has_the_end_of_its_prompt():
    worker = Worker()
    worker.add_all((ask(5, choices=(0, 1)), ask(5, 50)), tenant="a")
    worker.step()
    assert worker.load.tokens_by_tenant == {"a": 10}
    worker.run()
    assert {draw.prompt_len for batch in worker.batches for row in batch.rows for draw in row.draws} == {5}


def test_a_request_begins_once_with_all_its_choices():
    worker = Worker(chunk_tokens=4)
    request = worker.add(ask(9, choices=(0, 1)))
    assert worker.scheduler.take_started() == []
    worker.begin()
    assert [worker.scheduler.take_started(), worker.scheduler.take_started()] == [[request], []]
    for _ in range(4):
        worker.end()
        worker.begin()
        assert worker.scheduler.take_started() == []


def test_prompt_tokens_and_decoding_rows_of_a_step_are_counted_separately():
    worker = Worker(chunk_tokens=8)
    worker.add_all((ask(3, max_tokens=9), ask(3, 20, max_tokens=9)))
    assert (worker.step().prompt_tokens, worker.step().decode_rows) == (6, 2)
    worker.add(ask(10, 50))
    result = worker.step()
    assert (result.prompt_tokens, result.decode_rows) == (8, 2)


def test_choices_that_forked_keep_their_place_before_those_that_came_later():
    worker = Worker()
    choices = [(0,), (0, 1, 2), (0,)]
    first, forked, last = (worker.add(ask(3, 50 * i, choices=c, max_tokens=20)) for i, c in enumerate(choices))
    worker.step()
    order = worker.scheduler._registry.running
    assert [request.id for request in order] == [first.id, *[forked.id] * 3, last.id]


def test_a_request_has_one_name_at_a_time():
    worker = Worker()
    request = worker.add(client := ask(3, max_tokens=20))
    worker.step()
    worker.clients["other"] = client
    worker.scheduler.rename(request, "other")
    requests, registry = worker.scheduler.requests, worker.scheduler._registry
    assert (requests(client.id), requests("other"), len(registry)) == ((), (request,), 1)
    worker.run(client)
    assert (worker.idle, registry._by_id) == (True, {})


@pytest.mark.parametrize(("choices", "room"), [((0,), None), ((0, 1, 2), None), ((0, 1, 2), 1)])
def test_an_output_with_too_few_rows_or_tokens_is_refused(choices, room):
    worker = Worker()
    worker.add(ask(3, choices=choices), room=room)
    batch = worker.begin()
    (sampled,) = worker.output
    with pytest.raises(ValueError, match="shorter"):
        worker.scheduler.process(batch, (sampled[:2],) if len(choices) > 1 else (), 0.0)


def test_the_load_has_the_share_of_slots_with_kv():
    """A running one fills 9 of its 12 slots after its prompt, a grant none of its 8. A sequence that decodes is not
    part of the queue."""
    worker = Worker(num_blocks=20)
    assert worker.load.kv_utilization == 1
    worker.add(ask(9, max_tokens=3))
    for filled in (9, 10):
        worker.step()
        assert worker.load.kv_utilization == filled / 12
        assert (worker.load.queue_tokens, worker.load.running) == (0, 1)
    worker.granted(ask(3, 50))
    assert worker.load.kv_utilization == 10 / 20
    worker.run()


def test_blocks_shared_by_choices_are_counted_once():
    worker = Worker(num_blocks=20)
    worker.add(ask(8, choices=(0, 1), max_tokens=3))
    worker.steps(2)
    assert (worker.load.used_blocks, worker.load.kv_utilization) == (4, 10 / 16)


def test_blocks_and_owners_that_disagree_are_a_mismatch():
    worker = Worker(num_blocks=4)
    request = worker.add(ask(3))
    worker.step()
    assert worker.scheduler.mismatch() == ""
    (block,) = worker.pool.allocate(1)
    assert worker.scheduler.mismatch() == "block 1 has 1 references and 0 owners"
    worker.pool.release((block, *request.blocks))
    assert worker.scheduler.mismatch() == "block 0 has 0 references and 1 owners"
    worker = Worker(num_blocks=4)
    worker.incoming._admission.reserved.add(ask(3).request())
    assert worker.scheduler.mismatch().startswith("assert self._admission.reserved == "), "the condition without a name"
