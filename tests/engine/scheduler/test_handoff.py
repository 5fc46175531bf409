"""Books of both sides of a prefill that is handed over: grants, parking, adoption."""

import pytest

from legato_engine.scheduler.planner import MOST_LOOKED_AT
from legato_engine.scheduler.request import RequestState


def prompt(length, start=0):
    return tuple(range(start, start + length))


def hand_over(sender, request, receiver, transfer):
    kv = sender.finish(request)
    assert (kv.token_ids, kv.blocks) == (tuple(request.tokens), tuple(request.blocks))
    sender.transfer(kv.blocks, receiver, transfer)
    firsts = {choice: (sampled,) for choice, sampled in request.first.items()}
    emissions = receiver.scheduler.incoming.adopt(transfer, kv.computed, firsts)
    sender.commit(request)
    receiver.deliver(emissions)
    sender.check()
    receiver.check()


@pytest.fixture
def pair(make_worker):
    return make_worker(role="prefill", chunk_tokens=8), make_worker(role="decode")


def dispatch(pair, client, **overrides):
    sender, receiver = pair
    request = sender.add(client, room=1, **overrides)
    receiver.clients[client.id] = client
    return request, receiver.reserve(client.request(receiver.now, room=1, **overrides), receiver.now)


@pytest.mark.parametrize("choices", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("length", [1, 4, 7, 18, 24])
@pytest.mark.parametrize("max_tokens", [1, 6])
def test_a_sequence_goes_on_at_the_receiver(pair, make_client, length, choices, max_tokens):
    sender, receiver = pair
    client = make_client(prompt(length), max_tokens=max_tokens, choices=choices)
    request, transfer = dispatch(pair, client)
    assert receiver.scheduler.incoming.grants() == (transfer,)
    assert len(transfer.blocks) == min(-(-length // 4) + 1, -(-(length + max_tokens) // 4))
    sender.grant(request)
    sender.run()
    assert request.state is RequestState.COMPUTED
    hand_over(sender, request, receiver, transfer)
    assert sender.scheduler.idle
    receiver.run()
    assert client.complete
    assert receiver.scheduler.idle


@pytest.mark.parametrize(("length", "max_tokens"), [(14, 2), (13, 40), (12, 4), (15, 1)])
def test_an_arena_of_one_longest_sequence_takes_its_hand_off(make_worker, make_client, length, max_tokens):
    """What `Generate` would serve here is no more when it comes from elsewhere: nothing is reserved beyond its end."""
    sender = make_worker(role="prefill", num_blocks=4, max_length=16)
    receiver = make_worker(role="decode", num_blocks=4, max_length=16)
    client = make_client(prompt(length), max_tokens=max_tokens)
    client.expected = {0: client.expected[0][: 16 - length]}
    request, transfer = dispatch((sender, receiver), client)
    assert receiver.scheduler.incoming.grants() == (transfer,)
    sender.grant(request)
    sender.run()
    hand_over(sender, request, receiver, transfer)
    receiver.run()
    assert client.complete
    assert receiver.scheduler.idle


def test_each_chunk_tells_of_its_blocks(pair, make_client):
    sender, _ = pair
    request, _ = dispatch(pair, make_client(prompt(21)))
    ready = []
    while result := sender.step():
        ready += [r.full_blocks(4) for r in result.advanced]
    assert ready[:2] == [2, 4]
    assert request.state is RequestState.PARKED


def test_without_a_grant_only_cached_blocks_are_left(pair, make_client):
    sender, receiver = pair
    client = make_client(prompt(18))
    request, transfer = dispatch(pair, client)
    sender.run()
    counts = sender.pool.counts()
    assert (request.state, request.blocks, counts.used, counts.cached) == (RequestState.PARKED, [], 0, 4)
    first = dict(request.first)
    sender.grant(request)
    sender.run()
    assert (request.state, request.first) == (RequestState.COMPUTED, first)
    assert sender.batches[-1].rows[0].start == 16
    assert sender.batches[-1].rows[0].draws == ()
    receiver.scheduler.incoming.grants()
    hand_over(sender, request, receiver, transfer)
    receiver.run()
    assert client.complete


def test_a_prefill_is_ready_when_it_is_parked_and_once_more_when_it_was_granted(pair, make_client):
    sender, _ = pair
    request, _ = dispatch(pair, make_client(prompt(5)))
    assert sender.step().prefilled == [request]
    assert request.state is RequestState.PARKED
    sender.grant(request)
    assert sender.step().prefilled == [request]
    assert request.state is RequestState.COMPUTED


def test_a_parked_prefill_is_recomputed_when_its_blocks_were_taken(make_worker, make_client):
    pair = make_worker(num_blocks=6, role="prefill"), make_worker()
    sender, receiver = pair
    client = make_client(prompt(18))
    request, transfer = dispatch(pair, client)
    sender.run()
    sender.add(make_client(prompt(18, 100), max_tokens=1))
    sender.run()
    sender.grant(request)
    sender.run()
    receiver.scheduler.incoming.grants()
    hand_over(sender, request, receiver, transfer)
    receiver.run()
    assert client.complete


def test_parked_prefills_are_limited(make_worker, make_client):
    worker = make_worker(role="prefill", max_parked=2)
    requests = [worker.add(make_client(prompt(5, 10 * i)), room=i) for i in range(4)]
    worker.run()
    assert [r.state for r in requests] == [
        RequestState.PARKED,
        RequestState.PARKED,
        RequestState.WAITING,
        RequestState.WAITING,
    ]
    worker.grant(requests[3])
    worker.run()
    worker.grant(requests[1])
    worker.run()
    assert [r.state for r in requests] == [RequestState.PARKED, RequestState.COMPUTED] * 2
    assert worker.scheduler._registry.ungranted() == 2


def test_prefills_that_may_not_be_parked_keep_nobody_behind_them(make_worker, make_client):
    """More of them than are looked at in one step."""
    worker = make_worker(role="prefill", max_parked=2, num_blocks=64)
    for i in range(MOST_LOOKED_AT + 2):
        worker.add(make_client(prompt(5, 10 * i)), room=i)
    worker.run()
    client = make_client(prompt(9, 900))
    worker.add(client)
    worker.run()
    assert client.complete


@pytest.mark.parametrize(("skipped", "starts"), [(MOST_LOOKED_AT - 2, True), (MOST_LOOKED_AT - 1, False)])
def test_a_step_looks_at_a_part_of_a_long_queue(make_worker, make_client, skipped, starts):
    """At one that starts, at those that wait for the prefix that it computes, and then at the last one."""
    worker = make_worker()
    for i in range(1 + skipped):
        worker.add(make_client((*prompt(8), 100 + i)))
    last = worker.add(make_client(prompt(3, 300)))
    worker.begin()
    assert (last.state is RequestState.RUNNING) is starts


def test_granted_sequences_go_first_and_keep_their_blocks(make_worker, make_client):
    worker = make_worker(num_blocks=8, chunk_tokens=4, max_running=2)
    growing = make_client(prompt(7, 100), max_tokens=17)
    worker.add(growing)
    worker.step()
    request = worker.add(make_client(prompt(15, 200)), room=1)
    worker.add(make_client(prompt(3, 300)))
    worker.grant(request)
    worker.step()
    worker.step()
    blocks = list(request.blocks)
    while request.state is not RequestState.COMPUTED:
        worker.step()
    worker.run()
    assert request.blocks == blocks
    worker.finish(request)
    worker.commit(request)
    worker.run()
    assert growing.complete


@pytest.mark.parametrize("steps", range(5))
def test_a_cancelled_sender_keeps_granted_blocks_until_released(pair, make_client, steps):
    sender, _ = pair
    client = make_client(prompt(18))
    request, _ = dispatch(pair, client)
    sender.step()
    sender.grant(request)
    for _ in range(steps):
        sender.step()
    blocks = list(request.blocks)
    assert sender.cancel(client).requests == (request,)
    assert sender.scheduler.cancel(client.id, 9).requests == ()
    assert request.blocks == blocks
    assert not sender.scheduler.idle
    sender.check()
    sender.abort(request)
    sender.check()
    assert sender.scheduler.idle


def test_cached_blocks_of_the_receiver_are_not_transferred(pair, make_client):
    sender, receiver = pair
    receiver.add(make_client(prompt(12)))
    receiver.run()
    client = make_client((*prompt(12), 70, 71, 72))
    request, transfer = dispatch(pair, client)
    receiver.scheduler.incoming.grants()
    assert transfer.cached == 3
    sender.grant(request)
    sender.run()
    hand_over(sender, request, receiver, transfer)
    receiver.run()
    assert client.complete


@pytest.mark.parametrize("steps", range(4))
def test_a_withdrawn_grant_leaves_only_cached_blocks(pair, make_client, steps):
    sender, receiver = pair
    client = make_client(prompt(18))
    request, transfer = dispatch(pair, client)
    sender.grant(request)
    for _ in range(steps):
        sender.step()
    sender.withdraw(request)
    sender.run()
    assert (request.state, sender.pool.counts().used) == (RequestState.PARKED, 0)
    sender.grant(request)
    sender.run()
    receiver.scheduler.incoming.grants()
    hand_over(sender, request, receiver, transfer)
    receiver.run()
    assert client.complete


def test_a_running_prefill_goes_on_when_its_grant_is_withdrawn(pair, make_client):
    sender, _ = pair
    request, _ = dispatch(pair, make_client(prompt(18)))
    sender.grant(request)
    sender.step()
    sender.withdraw(request)
    assert (request.state, request.computed, request.sending) == (RequestState.RUNNING, 8, False)


def test_a_withdrawn_grant_of_one_that_has_ended_frees_its_blocks(pair, make_client):
    sender, _ = pair
    client = make_client(prompt(18))
    request, _ = dispatch(pair, client)
    sender.grant(request)
    sender.step()
    sender.cancel(client)
    assert sender.pool.counts().used > 0
    sender.withdraw(request)
    assert request.state is RequestState.ENDED
    assert sender.pool.counts().used == 0
    assert sender.scheduler.idle


def test_a_grant_for_one_that_has_ended_changes_nothing(pair, make_client):
    sender, _ = pair
    client = make_client(prompt(18))
    request, _ = dispatch(pair, client)
    sender.cancel(client)
    with pytest.raises(ValueError, match="has ended"):
        sender.grant(request)
    assert (request.state, request.sending) == (RequestState.ENDED, False)
    assert sender.scheduler.idle


def test_prefills_that_are_being_computed_count_among_those_that_will_be_parked(make_worker, make_client):
    worker = make_worker(role="prefill", max_parked=1, chunk_tokens=4)
    first, second = (worker.add(make_client(prompt(6, 50 * i)), room=i) for i in range(2))
    worker.step()
    worker.begin()
    assert (first.state, second.state) == (RequestState.RUNNING, RequestState.WAITING)
    worker.end()
    worker.run()
    assert (first.state, second.state) == (RequestState.PARKED, RequestState.WAITING)
