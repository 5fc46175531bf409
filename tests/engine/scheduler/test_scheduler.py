"""Batching on one worker: chunks, prefix cache, forks, preemption, order, and ends of every kind."""

import pytest

from legato_engine.scheduler.limits import RequestRejected
from legato_engine.scheduler.request import RequestState
from legato_protocol.sampling_params import SamplingParams


def prompt(length, start=0):
    return tuple(range(start, start + length))


def test_several_requests_give_the_reference_tokens(make_worker, make_client):
    worker = make_worker()
    clients = [make_client(prompt(n, 100 * n), max_tokens=n) for n in range(1, 9)]
    for client in clients:
        worker.add(client)
    worker.run()
    assert all(client.complete for client in clients)
    assert worker.scheduler.idle
    counts = worker.pool.counts()
    assert (counts.used, counts.quarantined) == (0, 0)


def test_a_long_prompt_is_computed_in_chunks_while_others_decode(make_worker, make_client):
    worker = make_worker(chunk_tokens=8)
    short = make_client(prompt(3), max_tokens=20)
    worker.add(short)
    worker.step()
    worker.add(make_client(prompt(40, 100)))
    for _ in range(5):
        before = len(short.got[0])
        worker.step()
        assert len(short.got[0]) == before + 1
        assert [len(row.tokens) for row in worker.batches[-1].rows] == [1, 8]
    worker.run()


def test_chunk_tokens_bound_the_prompt_tokens_of_a_step(make_worker, make_client):
    worker = make_worker(chunk_tokens=8)
    for start in range(0, 500, 100):
        worker.add(make_client(prompt(7, start)))
    worker.run()
    prompts = [sum(len(row.tokens) for row in batch.rows if len(row.tokens) > 1) for batch in worker.batches]
    assert max(prompts) == 8


def test_a_known_prefix_is_not_computed_again(make_worker, make_client):
    worker = make_worker()
    worker.add(make_client(prompt(14)))
    worker.run()
    again = make_client((*prompt(12), 77, 78))
    request = worker.add(again)
    worker.step()
    assert worker.batches[-1].rows[0].start == request.cached_tokens == 12
    assert request.stored == 3
    worker.run()
    assert again.complete


def test_at_least_the_last_token_is_computed(make_worker, make_client):
    worker = make_worker()
    for _ in range(2):
        client = make_client(prompt(8))
        worker.add(client)
        worker.run()
        assert client.complete
    assert [row.start for batch in worker.batches for row in batch.rows if row.start + len(row.tokens) == 8] == [0, 4]


def test_generated_tokens_are_found_by_the_next_turn(make_worker, make_client):
    worker = make_worker()
    first = make_client(prompt(6), max_tokens=7)
    worker.add(first)
    worker.run()
    second = make_client((*first.prompt, *first.got[0], 5))
    request = worker.add(second)
    worker.run()
    assert request.cached_tokens == 12
    assert second.complete


@pytest.mark.parametrize("field", ["cache_salt", "adapter"])
def test_salts_and_adapters_do_not_share(make_worker, make_client, field):
    worker = make_worker()
    worker.add(make_client(prompt(12)))
    worker.run()
    request = worker.add(make_client(prompt(12)), **{field: "other"})
    worker.run()
    assert request.cached_tokens == 0


def test_a_prefix_in_flight_is_computed_once(make_worker, make_client):
    worker = make_worker(chunk_tokens=8)
    clients = [make_client((*prompt(20), 100 + i)) for i in range(4)]
    for client in clients:
        worker.add(client)
    worker.run()
    assert all(client.complete for client in clients)
    prompt_rows = [row for batch in worker.batches for row in batch.rows if row.start < 20]
    assert sum(min(len(row.tokens), 20 - row.start) for row in prompt_rows) == 20


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("how", ["cancel", "pause"])
def test_who_waits_for_a_prefix_goes_on_when_its_owner_stops(make_worker, make_client, steps, how):
    worker = make_worker(chunk_tokens=8)
    owner, waiter = make_client((*prompt(20), 1)), make_client((*prompt(20), 2))
    worker.add(owner)
    worker.add(waiter)
    for _ in range(steps):
        worker.step()
    if how == "cancel":
        worker.cancel(owner)
    else:
        worker.scheduler.pause(owner.id, 1, True)
    worker.run()
    assert waiter.complete
    if how == "pause":
        worker.scheduler.pause(owner.id, 1, False)
        worker.run()
        assert owner.complete


@pytest.mark.parametrize("length", [3, 4, 5, 8, 11])
def test_choices_fork_after_the_prompt_and_share_its_blocks(make_worker, make_client, length):
    worker = make_worker()
    client = make_client(prompt(length), max_tokens=6, choices=(0, 1, 2))
    worker.add(client)
    worker.step()
    tables = [request.blocks for request in worker.scheduler.requests(client.id)]
    full = length // 4
    assert len(tables) == 3
    assert all(table[:full] == tables[0][:full] for table in tables)
    worker.run()
    assert client.complete
    assert sum(len(batch.copies) for batch in worker.batches) == (2 if length % 4 else 0)


def test_a_fork_works_when_its_siblings_stop_at_different_times(make_worker, make_client):
    worker = make_worker()
    probe = make_client(prompt(5), max_tokens=8, choices=(0, 1, 2))
    stops = (probe.expected[1][2], probe.expected[2][0])
    client = make_client(prompt(5), max_tokens=8, choices=(0, 1, 2), stop=stops)
    worker.add(client)
    worker.run()
    assert client.complete
    assert set(client.finished.values()) == {"stop", "length"}


def test_max_length_ends_a_sequence(make_worker, make_client):
    worker = make_worker(max_length=12)
    client = make_client(prompt(10), max_tokens=2)
    request = worker.add(client, params=SamplingParams(max_tokens=1 << 30, seed=7))
    worker.run()
    assert (request.finish, len(request.tokens)) == ("length", 12)


def test_out_of_blocks_the_newest_of_lowest_priority_gives_way(make_worker, make_client):
    worker = make_worker(num_blocks=9, growth_tokens=0)
    clients = [make_client(prompt(5, 100 * i), max_tokens=14) for i in range(4)]
    requests = [worker.add(c, priority=p) for c, p in zip(clients, (0, 5, 0, 5), strict=True)]
    preempted = []
    while worker.step():
        preempted += [i for i, r in enumerate(requests) if r.preemptions and i not in preempted]
    assert all(client.complete for client in clients)
    assert preempted
    assert preempted[0] == 2
    assert 1 not in preempted


def test_who_was_preempted_finds_its_blocks_again(make_worker, make_client):
    worker = make_worker(num_blocks=10, growth_tokens=0)
    old, young = make_client(prompt(9), max_tokens=20), make_client(prompt(13, 100), max_tokens=20)
    worker.add(old)
    request = worker.add(young)
    while not request.preemptions:
        worker.step()
    assert request.state is RequestState.WAITING
    worker.run()
    assert old.complete
    assert young.complete
    assert request.preemptions == 0


def test_nobody_starves_under_constant_pressure(make_worker, make_client):
    """A low priority request ends although higher ones keep coming, since waiting is worth priority."""
    worker = make_worker(num_blocks=12, max_running=2, aging=2.0)
    low = make_client(prompt(6), max_tokens=3)
    worker.add(low, priority=0)
    for i in range(60):
        worker.add(make_client(prompt(6, 100 + 10 * i), max_tokens=3), priority=3)
        worker.step()
        if low.complete:
            break
    assert low.complete


def test_what_was_preempted_twice_is_left_alone_until_it_progressed(make_worker, make_client):
    worker = make_worker(num_blocks=8, growth_tokens=0)
    clients = [make_client(prompt(7, 100 * i), max_tokens=12) for i in range(3)]
    requests = [worker.add(client) for client in clients]
    while worker.step():
        assert all(request.preemptions <= 2 for request in requests)
    assert all(client.complete for client in clients)


@pytest.mark.parametrize(
    ("length", "max_tokens", "overrides"),
    [(40, 30, {}), (64, 1, {}), (5, 4, {"prompt_len": 1}), (5, 4, {"choices": tuple(range(65))}), (40, 1, {"room": 1})],
)
def test_what_can_never_run_is_refused_at_once(make_worker, make_client, length, max_tokens, overrides):
    worker = make_worker(num_blocks=10)
    client = make_client(prompt(length), max_tokens=max_tokens)
    with pytest.raises(RequestRejected) as refusal:
        worker.add(client, **overrides)
    assert (refusal.value.code, refusal.value.retry) == ("invalid", False)
    assert worker.scheduler.idle


def test_a_full_queue_refuses(make_worker, make_client):
    worker = make_worker(max_waiting=2)
    for i in range(2):
        worker.add(make_client(prompt(3, i)))
    with pytest.raises(RequestRejected) as refusal:
        worker.add(make_client(prompt(3, 9)))
    assert (refusal.value.code, refusal.value.retry) == ("overloaded", True)


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("steps", range(6))
def test_cancel_at_any_step_frees_all_and_disturbs_nobody(make_worker, make_client, steps, compute):
    worker = make_worker(num_blocks=14, chunk_tokens=4)
    victim = make_client(prompt(9), max_tokens=6, choices=(0, 1))
    other = make_client(prompt(10, 50), max_tokens=6)
    worker.add(victim)
    worker.add(other)
    for _ in range(steps):
        worker.step()
    worker.begin(compute)
    ended = worker.cancel(victim)
    assert {request.id for request in ended.requests} == {victim.id}
    worker.scheduler.check_integrity()
    worker.add(make_client(prompt(9, 30)))
    worker.end()
    worker.run()
    assert other.complete
    assert worker.scheduler.idle
    assert worker.pool.counts().used == 0


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("steps", range(1, 6))
@pytest.mark.parametrize("choice", [0, 2])
def test_a_cancelled_choice_gives_its_own_blocks_back_and_its_siblings_go_on(
    make_worker, make_client, steps, compute, choice
):
    worker = make_worker(num_blocks=24)
    client = make_client(prompt(9), max_tokens=12, choices=(0, 1, 2))
    worker.add(client)
    for _ in range(steps):
        worker.step()
    worker.begin(compute)
    (ended,) = worker.drop(client, choice).requests
    assert ended.choices == (choice,)
    worker.scheduler.check_integrity()
    worker.end()
    left = [request.blocks for request in worker.scheduler.requests(client.id)]
    assert len(left) == 2
    assert worker.pool.counts().used == len(set().union(*left))
    worker.run()
    assert client.complete
    assert worker.scheduler.idle
    assert worker.pool.counts().used == 0


def test_choices_that_are_one_sequence_still_are_not_cancelled_apart(make_worker, make_client):
    worker = make_worker(chunk_tokens=4)
    client = make_client(prompt(9), choices=(0, 1))
    worker.add(client)
    worker.step()
    assert worker.drop(client, 1).requests == ()
    assert len(worker.scheduler.cancel(client.id, 99, (0, 1, 5)).requests) == 1
    assert worker.scheduler.idle


def test_blocks_of_a_step_in_flight_are_not_reused(make_worker, make_client):
    worker = make_worker(num_blocks=8)
    client = make_client(prompt(16))
    worker.add(client)
    batch = worker.begin()
    table = set(batch.rows[0].blocks)
    worker.cancel(client)
    transfer = worker.reserve(make_client(prompt(12, 50)).request(room=1), 0.0)
    assert worker.scheduler.incoming.grants() == ()
    worker.end()
    assert worker.scheduler.incoming.grants() == (transfer,)
    assert table & set(transfer.blocks)


def test_only_older_attempts_are_cancelled(make_worker, make_client):
    worker = make_worker()
    client = make_client(prompt(5))
    worker.add(client, attempt=3)
    assert worker.scheduler.cancel(client.id, 2).requests == ()
    worker.run()
    assert client.complete


def test_deadlines_end_requests(make_worker, make_client):
    worker = make_worker(max_running=1)
    clients = [make_client(prompt(5, i), max_tokens=30) for i in range(3)]
    requests = [worker.add(client, deadline=10.0 + i) for i, client in enumerate(clients)]
    worker.step()
    assert worker.scheduler.expire(9.0).requests == ()
    assert worker.scheduler.expire(11.0).requests == tuple(requests[:2])
    assert worker.scheduler.expire(11.5).requests == ()
    assert worker.scheduler.expire(12.0).requests == (requests[2],)
    assert worker.scheduler.expire(13.0).requests == ()
    assert worker.scheduler.idle


def test_a_paused_request_makes_no_tokens_and_gives_way(make_worker, make_client):
    worker = make_worker(num_blocks=8)
    slow = make_client(prompt(16), max_tokens=8)
    worker.add(slow)
    worker.step()
    worker.scheduler.pause(slow.id, 1, True)
    assert worker.step() is None
    eager = make_client(prompt(20, 50), max_tokens=4)
    worker.add(eager)
    worker.run()
    assert eager.complete
    assert not slow.finished
    worker.scheduler.pause(slow.id, 1, False)
    worker.run()
    assert slow.complete


def test_prefill_workers_start_short_prompts_first_but_long_ones_by_and_by(make_worker, make_client):
    worker = make_worker(role="prefill", chunk_tokens=4, max_running=1)
    worker.scheduler._queue.tokens_per_second = 10.0
    long, short = make_client(prompt(40), max_tokens=1), make_client(prompt(4, 100), max_tokens=1)
    worker.add(long)
    worker.add(short)
    worker.step()
    assert short.complete
    worker.run()
    assert long.complete


def test_prefill_workers_put_near_deadlines_first(make_worker, make_client):
    worker = make_worker(role="prefill", chunk_tokens=4, max_running=1)
    first, urgent = make_client(prompt(8), max_tokens=1), make_client(prompt(8, 100), max_tokens=1)
    worker.add(first)
    worker.now = 3.0
    worker.add(urgent, deadline=8.0)
    worker.step()
    assert worker.scheduler.requests(urgent.id)[0].state is RequestState.RUNNING


def test_load_counts_uncached_tokens(make_worker, make_client):
    worker = make_worker(chunk_tokens=8, max_running=1)
    worker.add(make_client(prompt(12), max_tokens=1), tenant="a")
    worker.run()
    request = worker.add(make_client((*prompt(8), *prompt(10, 50)), max_tokens=1), tenant="b")
    load = worker.scheduler.load()
    assert (load.queue_tokens, load.waiting, load.running) == (10, 1, 0)
    worker.step()
    load = worker.scheduler.load()
    assert (load.queue_tokens, load.waiting, load.running) == (2, 0, 1)
    used = {block for block in range(32) if worker.pool.references(block)}
    assert used == set(request.blocks)
    assert (load.free_blocks, load.cached_blocks, load.used_blocks, load.quarantined_blocks) == (26, 1, 5, 0)
    assert load.tokens_by_tenant == {"a": 12, "b": 8}


@pytest.mark.parametrize(("length", "uncached"), [(8, 4), (9, 1), (12, 4), (13, 1)])
def test_what_is_cached_is_no_part_of_the_queue_but_the_last_token_is(make_worker, make_client, length, uncached):
    worker = make_worker()
    worker.add(make_client(prompt(16)))
    worker.run()
    worker.add(make_client(prompt(length)))
    assert worker.scheduler.load().queue_tokens == uncached


def test_all_rows_of_a_tenant_in_one_step_count(make_worker, make_client):
    worker = make_worker()
    for start in (0, 50):
        worker.add(make_client(prompt(5, start)), tenant="a")
    worker.step()
    assert worker.scheduler.load().tokens_by_tenant == {"a": 10}


def test_a_draw_tells_where_the_prompt_ends(make_worker, make_client):
    """Penalties count from there."""
    worker = make_worker()
    worker.add(make_client(prompt(5), choices=(0, 1)))
    worker.run()
    draws = [draw for batch in worker.batches for row in batch.rows for draw in row.draws]
    assert {draw.prompt_len for draw in draws} == {5}


def test_a_request_begins_once_with_all_its_choices(make_worker, make_client):
    worker = make_worker(chunk_tokens=4)
    request = worker.add(make_client(prompt(9), choices=(0, 1)))
    assert worker.scheduler.begun() == []
    worker.begin()
    assert worker.scheduler.begun() == [request]
    assert worker.scheduler.begun() == []
    for _ in range(4):
        worker.end()
        worker.begin()
        assert worker.scheduler.begun() == []


def test_prompt_tokens_and_decoding_rows_of_a_step_are_counted_apart(make_worker, make_client):
    worker = make_worker(chunk_tokens=8)
    for start in (0, 20):
        worker.add(make_client(prompt(3, start), max_tokens=9))
    assert (worker.step().prompt_tokens, worker.step().decode_rows) == (6, 2)
    worker.add(make_client(prompt(10, 50)))
    result = worker.step()
    assert (result.prompt_tokens, result.decode_rows) == (8, 2)


def test_the_speed_of_prompts_is_measured_over_the_time_of_their_steps(make_worker, make_client):
    worker = make_worker(chunk_tokens=8)
    worker.now = 50.0
    worker.add(make_client(prompt(8), max_tokens=2))
    worker.begin()
    worker.now += 2.0
    worker.end()
    assert worker.scheduler._queue.tokens_per_second == pytest.approx(1000 + 0.2 * (8 / 2 - 1000))
    worker.step()
    assert worker.scheduler._queue.tokens_per_second == pytest.approx(1000 + 0.2 * (8 / 2 - 1000))


def test_choices_that_forked_keep_their_place_before_those_that_came_later(make_worker, make_client):
    worker = make_worker()
    first, forked, last = (
        worker.add(make_client(prompt(3, 50 * i), choices=choices, max_tokens=20))
        for i, choices in enumerate([(0,), (0, 1, 2), (0,)])
    )
    worker.step()
    order = worker.scheduler._registry.running
    assert [request.id for request in order] == [first.id, *[forked.id] * 3, last.id]


def test_a_request_has_one_name_at_a_time(make_worker, make_client):
    worker = make_worker()
    client = make_client(prompt(3), max_tokens=20)
    request = worker.add(client)
    worker.step()
    worker.clients["other"] = client
    worker.scheduler.rename(request, "other")
    assert worker.scheduler.requests(client.id) == ()
    assert worker.scheduler.requests("other") == (request,)
    assert len(worker.scheduler._registry) == 1
    worker.run()
    assert client.complete
    assert worker.scheduler.idle
    assert not worker.scheduler._registry._by_id


def test_who_stopped_computing_a_prefix_is_waited_for_no_longer(make_worker, make_client):
    """Also when it comes back: only what it will store is announced."""
    worker = make_worker(chunk_tokens=8)
    owner = worker.add(make_client((*prompt(20), 1)))
    worker.step()
    assert len(worker.scheduler._tables.computing) == 3
    worker.cancel(worker.clients[owner.id])
    assert worker.scheduler._tables.computing == {}


def test_one_step_is_in_flight_at_a_time(make_worker, make_client):
    worker = make_worker()
    worker.add(make_client(prompt(3), max_tokens=9))
    batch = worker.begin()
    output = worker.output
    with pytest.raises(RuntimeError, match="in flight"):
        worker.scheduler.schedule(0.0)
    worker.end()
    with pytest.raises(ValueError, match="not the first step in flight"):
        worker.scheduler.process(batch, output, 0.0)


def test_an_output_with_too_few_rows_is_refused(make_worker, make_client):
    worker = make_worker()
    for start in (0, 50):
        worker.add(make_client(prompt(3, start)))
    batch = worker.begin()
    with pytest.raises(ValueError, match="shorter"):
        worker.scheduler.process(batch, worker.output[:1], 0.0)


@pytest.mark.parametrize("room", [None, 1])
def test_an_output_with_too_few_tokens_for_its_choices_is_refused(make_worker, make_client, room):
    worker = make_worker()
    worker.add(make_client(prompt(3), choices=(0, 1, 2)), room=room)
    batch = worker.begin()
    (sampled,) = worker.output
    with pytest.raises(ValueError, match="shorter"):
        worker.scheduler.process(batch, (sampled[:2],), 0.0)


def test_a_prompt_leaves_room_for_a_token(make_worker, make_client):
    worker = make_worker(max_length=12)
    with pytest.raises(RequestRejected, match="no room for output"):
        worker.add(make_client(prompt(12), max_tokens=1))
    request = worker.add(make_client(prompt(11), max_tokens=1))
    worker.run()
    assert len(request.tokens) == 12


def test_what_is_complete_already_is_refused(make_worker, make_client):
    worker = make_worker()
    with pytest.raises(RequestRejected, match="exist already"):
        worker.add(make_client(prompt(5), max_tokens=2), prompt_len=3)
    worker.add(make_client(prompt(5), max_tokens=3), prompt_len=3)


def test_even_one_token_a_step_computes_a_prompt(make_worker, make_client):
    worker = make_worker(chunk_tokens=1)
    client = make_client(prompt(5), max_tokens=2)
    worker.add(client)
    worker.run()
    assert [len(row.tokens) for batch in worker.batches for row in batch.rows] == [1] * 6
    assert client.complete


def test_a_sequence_that_decodes_is_no_part_of_the_queue(make_worker, make_client):
    worker = make_worker()
    worker.add(make_client(prompt(3), max_tokens=9))
    worker.step()
    worker.step()
    assert (worker.scheduler.load().queue_tokens, worker.scheduler.load().running) == (0, 1)


@pytest.mark.parametrize("prompt_len", [0, 6])
def test_a_prompt_has_at_least_one_token_and_no_more_than_there_are(make_worker, make_client, prompt_len):
    with pytest.raises(RequestRejected, match=f"a prompt of {prompt_len} tokens in 5"):
        make_worker().add(make_client(prompt(5)), prompt_len=prompt_len)


def test_of_a_sequence_that_goes_on_here_only_its_prompt_counts_as_cached(make_worker, make_client):
    worker = make_worker()
    worker.add(make_client(prompt(12)))
    worker.run()
    request = worker.add(make_client(prompt(12), max_tokens=9), prompt_len=6)
    worker.begin()
    assert (request.computed, request.cached_tokens) == (8, 6)


def test_the_share_of_slots_that_hold_kv_is_told(make_worker, make_client):
    """Of 16 slots in 4 blocks, the running one's 3 hold 9 after its prompt, those of a grant none."""
    worker = make_worker(num_blocks=20)
    assert worker.scheduler.load().kv_utilization == 1
    worker.add(make_client(tuple(range(9)), max_tokens=3))
    worker.step()
    assert worker.scheduler.load().kv_utilization == 9 / 12
    worker.step()
    assert worker.scheduler.load().kv_utilization == 10 / 12
    worker.reserve(make_client(tuple(range(50, 53))).request(room=1), worker.now)
    worker.scheduler.incoming.grants()
    assert worker.scheduler.load().kv_utilization == 10 / 20
    worker.run()


def test_blocks_shared_by_choices_are_counted_once(make_worker, make_client):
    worker = make_worker(num_blocks=20)
    worker.add(make_client(tuple(range(8)), choices=(0, 1), max_tokens=3))
    worker.step()
    worker.step()
    load = worker.scheduler.load()
    assert (load.used_blocks, load.kv_utilization) == (4, 10 / 16)


def test_a_block_without_an_owner_is_a_mismatch(make_worker, make_client):
    worker = make_worker(num_blocks=4)
    worker.add(make_client((1, 2, 3)))
    worker.step()
    assert worker.scheduler.mismatch() == ""
    worker.pool.allocate(1)
    assert worker.scheduler.mismatch() == "block 1 has 1 references and 0 owners"


def test_an_owner_without_its_block_is_a_mismatch(make_worker, make_client):
    worker = make_worker(num_blocks=4)
    request = worker.add(make_client((1, 2, 3)))
    worker.step()
    worker.pool.release(request.blocks)
    assert worker.scheduler.mismatch() == "block 0 has 0 references and 1 owners"


def test_a_mismatch_without_a_name_is_told_by_the_condition_that_failed(make_worker, make_client):
    worker = make_worker(num_blocks=4)
    worker.scheduler.incoming._admission.reserved.add(make_client((1, 2, 3)).request())
    assert worker.scheduler.mismatch().startswith("assert self._admission.reserved == ")
