"""Books of a hand-off on both sides: grants, parking, reservations, adoption, quarantine, moves."""

import pytest

from legato_engine.request import State
from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.limits import Refused


def prompt(length, start=0):
    return tuple(range(start, start + length))


def transfer(sender, blocks, receiver, reservation):
    """Put all of the sender's `blocks` that the receiver wants."""
    targets = reservation.blocks[reservation.cached : len(blocks)]
    contents = [sender.arena.blocks[block] for block in blocks[reservation.cached :]]
    receiver.write(dict(zip(targets, contents, strict=True)))


def hand_over(sender, request, receiver, reservation):
    transfer(sender, request.blocks, receiver, reservation)
    firsts = {choice: (sampled,) for choice, sampled in request.first.items()}
    emissions = receiver.scheduler.adopt(reservation, request.computed, firsts)
    sender.scheduler.release_handoff(request)
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
    return request, receiver.scheduler.reserve(client.request(receiver.now, room=1, **overrides), receiver.now)


@pytest.mark.parametrize("choices", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("length", [1, 4, 7, 18, 24])
@pytest.mark.parametrize("max_tokens", [1, 6])
def test_a_sequence_goes_on_at_the_receiver(pair, make_client, length, choices, max_tokens):
    sender, receiver = pair
    client = make_client(prompt(length), max_tokens=max_tokens, choices=choices)
    request, reservation = dispatch(pair, client)
    assert receiver.scheduler.grants() == (reservation,)
    assert len(reservation.blocks) == -(-length // 4) + 1
    sender.scheduler.grant(request)
    sender.run()
    assert request.state is State.COMPUTED
    hand_over(sender, request, receiver, reservation)
    assert sender.scheduler.idle
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
    assert request.state is State.PARKED


def test_without_a_grant_only_cached_blocks_are_left(pair, make_client):
    sender, receiver = pair
    client = make_client(prompt(18))
    request, reservation = dispatch(pair, client)
    sender.run()
    counts = sender.pool.counts()
    assert (request.state, request.blocks, counts.used, counts.cached) == (State.PARKED, [], 0, 4)
    first = dict(request.first)
    sender.scheduler.grant(request)
    sender.run()
    assert (request.state, request.first) == (State.COMPUTED, first)
    assert sender.batches[-1].rows[0].start == 16
    assert sender.batches[-1].rows[0].draws == ()
    receiver.scheduler.grants()
    hand_over(sender, request, receiver, reservation)
    receiver.run()
    assert client.complete


def test_a_parked_prefill_is_recomputed_when_its_blocks_were_taken(make_worker, make_client):
    pair = make_worker(num_blocks=6, role="prefill"), make_worker()
    sender, receiver = pair
    client = make_client(prompt(18))
    request, reservation = dispatch(pair, client)
    sender.run()
    sender.add(make_client(prompt(18, 100), max_tokens=1))
    sender.run()
    sender.scheduler.grant(request)
    sender.run()
    receiver.scheduler.grants()
    hand_over(sender, request, receiver, reservation)
    receiver.run()
    assert client.complete


def test_parked_prefills_are_limited(make_worker, make_client):
    worker = make_worker(role="prefill", max_parked=2)
    requests = [worker.add(make_client(prompt(5, 10 * i)), room=i) for i in range(4)]
    worker.run()
    assert [r.state for r in requests] == [State.PARKED, State.PARKED, State.WAITING, State.WAITING]
    worker.scheduler.grant(requests[3])
    worker.run()
    assert requests[3].state is State.COMPUTED
    worker.scheduler.release_handoff(requests[0])
    worker.run()
    assert requests[2].state is State.PARKED


def test_granted_sequences_go_first_and_keep_their_blocks(make_worker, make_client):
    worker = make_worker(num_blocks=8, chunk_tokens=4, max_running=2)
    growing = make_client(prompt(7, 100), max_tokens=17)
    worker.add(growing)
    worker.step()
    request = worker.add(make_client(prompt(15, 200)), room=1)
    worker.add(make_client(prompt(3, 300)))
    worker.scheduler.grant(request)
    worker.step()
    worker.step()
    blocks = list(request.blocks)
    while request.state is not State.COMPUTED:
        worker.step()
    worker.run()
    assert request.blocks == blocks
    worker.scheduler.release_handoff(request)
    worker.run()
    assert growing.complete


@pytest.mark.parametrize("steps", range(5))
def test_a_cancelled_sender_keeps_granted_blocks_until_released(pair, make_client, steps):
    sender, _ = pair
    client = make_client(prompt(18))
    request, _ = dispatch(pair, client)
    sender.step()
    sender.scheduler.grant(request)
    for _ in range(steps):
        sender.step()
    blocks = list(request.blocks)
    assert sender.cancel(client).requests == (request,)
    assert sender.scheduler.cancel(client.id, 9).requests == ()
    assert request.blocks == blocks
    assert not sender.scheduler.idle
    sender.check()
    sender.scheduler.release_handoff(request)
    sender.check()
    assert sender.scheduler.idle


def test_cached_blocks_of_the_receiver_are_not_transferred(pair, make_client):
    sender, receiver = pair
    receiver.add(make_client(prompt(12)))
    receiver.run()
    client = make_client((*prompt(12), 70, 71, 72))
    request, reservation = dispatch(pair, client)
    receiver.scheduler.grants()
    assert reservation.cached == 3
    sender.scheduler.grant(request)
    sender.run()
    hand_over(sender, request, receiver, reservation)
    receiver.run()
    assert client.complete


def test_reservations_queue_in_order_until_there_is_room(make_worker, make_client):
    worker = make_worker(num_blocks=8)
    first, second, third = (
        worker.scheduler.reserve(make_client(prompt(n, 100 * n)).request(room=n), 0.0) for n in (13, 14, 2)
    )
    assert worker.scheduler.grants() == (first,)
    assert worker.scheduler.grants() == ()
    worker.scheduler.abandon(first)
    assert worker.scheduler.grants() == ()
    assert worker.pool.counts().quarantined == 5
    worker.scheduler.released(first)
    assert worker.scheduler.grants() == (second, third)
    for reservation in (second, third):
        worker.scheduler.abandon(reservation)
        worker.scheduler.released(reservation)
    worker.check()
    assert worker.scheduler.idle
    assert worker.pool.counts().free == 8


def test_a_late_write_into_quarantined_blocks_hurts_nobody(make_worker, make_client):
    worker = make_worker(num_blocks=12)
    reservation = worker.scheduler.reserve(make_client(prompt(9)).request(room=1), 0.0)
    worker.scheduler.grants()
    late = list(reservation.blocks)
    worker.scheduler.abandon(reservation)
    client = make_client(prompt(9, 50), max_tokens=8)
    worker.add(client)
    while worker.step():
        worker.write({block: [0, 0, 0, 0] for block in late})
    assert client.complete


@pytest.fixture
def pressed(make_worker, make_client):
    """A worker whose running sequence needs the blocks of two grants, of which one was written to."""
    worker = make_worker(num_blocks=8, growth_tokens=0)
    worker.client = make_client(prompt(7), max_tokens=17)
    worker.add(worker.client)
    worker.step()
    written = worker.scheduler.reserve(make_client(prompt(3, 50)).request(room=1), 0.0)
    fresh = worker.scheduler.reserve(make_client(prompt(3, 70)).request(room=2), 0.0)
    assert worker.scheduler.grants() == (written, fresh)
    worker.scheduler.written(written)
    worker.run()
    assert worker.scheduler.wanted_back() == (fresh,)
    assert not worker.client.complete
    return worker, fresh


def test_running_sequences_take_back_unwritten_grants(pressed):
    worker, fresh = pressed
    worker.scheduler.taken_back(fresh)
    assert worker.pool.counts().quarantined == 0
    worker.run()
    assert worker.client.complete
    assert worker.scheduler.grants() == (fresh,)
    worker.check()


def test_a_grant_that_turns_out_to_be_written_is_kept(pressed):
    worker, fresh = pressed
    worker.scheduler.written(fresh)
    worker.scheduler.taken_back(fresh)
    worker.run()
    assert fresh.granted
    assert worker.scheduler.wanted_back() == ()


def test_a_grant_that_is_wanted_back_may_be_abandoned(pressed):
    worker, fresh = pressed
    worker.scheduler.abandon(fresh)
    worker.scheduler.taken_back(fresh)
    assert worker.pool.counts().quarantined == 2
    worker.scheduler.released(fresh)
    worker.run()
    assert worker.client.complete
    worker.check()


def test_a_grant_that_nobody_heard_of_is_undone_without_quarantine(make_worker, make_client):
    worker = make_worker(num_blocks=6, growth_tokens=0)
    client = make_client(prompt(7), max_tokens=17)
    worker.add(client)
    worker.step()
    reservation = worker.scheduler.reserve(make_client(prompt(3, 50)).request(room=1), 0.0)
    worker.run()
    assert client.complete
    assert worker.scheduler.wanted_back() == ()
    assert worker.scheduler.grants() == (reservation,)


def test_nothing_is_quarantined_for_a_grant_that_nobody_heard_of(make_worker, make_client):
    worker = make_worker()
    reservation = worker.scheduler.reserve(make_client(prompt(3)).request(room=1), 0.0)
    worker.add(make_client(prompt(3, 50)))
    worker.step()
    assert reservation.granted
    worker.scheduler.abandon(reservation)
    assert worker.scheduler.grants() == ()
    worker.run()
    assert worker.scheduler.idle


@pytest.mark.parametrize("steps", range(4))
def test_a_withdrawn_grant_leaves_only_cached_blocks(pair, make_client, steps):
    sender, receiver = pair
    client = make_client(prompt(18))
    request, reservation = dispatch(pair, client)
    sender.scheduler.grant(request)
    for _ in range(steps):
        sender.step()
    sender.scheduler.withdraw(request)
    sender.run()
    assert (request.state, sender.pool.counts().used) == (State.PARKED, 0)
    sender.scheduler.grant(request)
    sender.run()
    receiver.scheduler.grants()
    hand_over(sender, request, receiver, reservation)
    receiver.run()
    assert client.complete


@pytest.mark.parametrize(
    ("computed", "sampled"),
    [(9, {}), (6, {0: [Sampled(1)]}), (6, {1: [Sampled(1)]}), (99, {0: [Sampled(1)], 1: [Sampled(1)]}), (-1, {})],
)
def test_a_handoff_that_does_not_match_changes_nothing(make_worker, make_client, computed, sampled):
    worker = make_worker()
    reservation = worker.scheduler.reserve(make_client(prompt(6), choices=(0, 1)).request(room=1), 0.0)
    worker.scheduler.grants()
    with pytest.raises(ValueError, match=r"KV of|some choices"):
        worker.scheduler.adopt(reservation, computed, sampled)
    worker.scheduler.abandon(reservation)
    worker.scheduler.released(reservation)
    worker.check()
    assert worker.scheduler.idle


def test_no_blocks_can_be_adopted_before_the_grant_or_twice(make_worker, make_client):
    worker = make_worker()
    reservation = worker.scheduler.reserve(make_client(prompt(6)).request(room=1), 0.0)
    with pytest.raises(ValueError, match="holds no blocks"):
        worker.scheduler.adopt(reservation, 0, {})
    worker.scheduler.grants()
    worker.scheduler.adopt(reservation, 0, {})
    with pytest.raises(ValueError, match="holds no blocks"):
        worker.scheduler.adopt(reservation, 0, {})


def test_cancel_and_deadline_end_reservations(make_worker, make_client):
    worker = make_worker(num_blocks=8)
    client = make_client(prompt(13))
    granted = worker.scheduler.reserve(client.request(room=1), 0.0)
    pending = worker.scheduler.reserve(make_client(prompt(13, 50)).request(room=2, deadline=5.0), 0.0)
    worker.scheduler.grants()
    assert worker.scheduler.expire(6.0).reservations == (pending,)
    assert worker.scheduler.cancel(client.id, 1).reservations == (granted,)
    worker.scheduler.released(granted)
    worker.check()
    assert worker.scheduler.idle


def test_reservations_are_bounded(make_worker, make_client):
    worker = make_worker(num_blocks=8, max_waiting=1)
    worker.scheduler.reserve(make_client(prompt(3)).request(room=1), 0.0)
    with pytest.raises(Refused):
        worker.scheduler.reserve(make_client(prompt(3, 9)).request(room=2), 0.0)
    with pytest.raises(Refused) as refusal:
        worker.scheduler.reserve(make_client(prompt(60)).request(room=3), 0.0)
    assert refusal.value.code == "invalid"


def begin_move(source, target, client, lag=0):
    """`target` reserves what the gateway has seen, `lag` tokens less than there are."""
    request = source.scheduler.requests(client.id)[0]
    known = request.tokens[: len(request.tokens) - lag]
    target.clients[client.id] = client
    reservation = target.scheduler.reserve(client.request(tokens=known, room=5, attempt=2), target.now)
    assert target.scheduler.grants() == (reservation,)
    source.scheduler.begin_move(request, len(reservation.blocks))
    return request, reservation


def finish_move(source, target, request, reservation, frozen):
    transfer(source, frozen.blocks, target, reservation)
    extra = [Sampled(token) for token in frozen.token_ids[len(reservation.request.tokens) :]]
    target.deliver(target.scheduler.adopt(reservation, frozen.computed, {0: extra}))
    source.scheduler.finish_move(request)
    source.check()
    target.check()


@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("steps_before", [1, 3, 4, 5])
@pytest.mark.parametrize("steps_between", [0, 2, 12])
def test_a_running_sequence_moves(make_worker, make_client, lag, steps_before, steps_between):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=24)
    source.add(client)
    for _ in range(steps_before):
        source.step()
    request, reservation = begin_move(source, target, client, min(lag, steps_before))
    for _ in range(steps_between):
        source.step()
    frozen = source.scheduler.freeze(request)
    assert frozen is not None
    assert source.step() is None
    finish_move(source, target, request, reservation, frozen)
    assert source.scheduler.idle
    target.run()
    assert client.complete


def test_a_failed_move_goes_on_at_home(make_worker, make_client):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=12)
    source.add(client)
    source.step()
    request, reservation = begin_move(source, target, client)
    assert source.scheduler.freeze(request) is not None
    target.scheduler.abandon(reservation)
    source.scheduler.unfreeze(request)
    source.run()
    assert client.complete
    assert source.scheduler.idle


def test_freezing_waits_for_the_step_in_flight(make_worker, make_client):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=12)
    source.add(client)
    source.step()
    request, _ = begin_move(source, target, client)
    source.begin()
    assert source.scheduler.freeze(request) is None
    source.end()
    frozen = source.scheduler.freeze(request)
    assert frozen is not None
    assert (len(frozen.token_ids), frozen.computed) == (8, 7)


@pytest.mark.parametrize("end", ["unfreeze", "finish_move"])
def test_a_sequence_that_ends_while_it_moves_keeps_its_blocks_so_long(make_worker, make_client, end):
    source, target = make_worker(), make_worker()
    client = make_client(prompt(6), max_tokens=3)
    source.add(client)
    source.step()
    request, _ = begin_move(source, target, client)
    source.run()
    assert client.complete
    assert source.pool.counts().used == len(request.blocks) > 0
    assert source.scheduler.freeze(request) is None
    getattr(source.scheduler, end)(request)
    source.check()
    assert source.scheduler.idle


def test_a_moving_sequence_is_not_preempted(make_worker, make_client):
    source, target = make_worker(num_blocks=8, growth_tokens=0), make_worker()
    old, young = make_client(prompt(6), max_tokens=20), make_client(prompt(8, 50), max_tokens=20)
    source.add(old)
    source.add(young)
    source.step()
    request, _ = begin_move(source, target, young)
    while source.step():
        assert request.state in (State.RUNNING, State.ENDED)
    source.scheduler.release_handoff(request)
    source.run()
    assert old.complete


def test_only_one_running_sequence_moves(make_worker, make_client):
    worker = make_worker(chunk_tokens=4)
    waiting = worker.add(make_client(prompt(6)))
    with pytest.raises(ValueError, match="can move"):
        worker.scheduler.begin_move(waiting, 5)
    several = worker.add(make_client(prompt(6, 50), choices=(0, 1)))
    worker.step()
    with pytest.raises(ValueError, match="can move"):
        worker.scheduler.begin_move(several, 5)
