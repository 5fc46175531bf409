"""Books of a receiver: incoming transfers, grants, their revocation, quarantine."""

import pytest

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.limits import RequestRejected
from legato_engine.scheduler.request import RequestState
from legato_engine.scheduler.transfers import IllegalTransferMove, IncomingState


def prompt(length, start=0):
    return tuple(range(start, start + length))


def test_incoming_transfers_queue_in_order_until_there_is_room(make_worker, make_client):
    worker = make_worker(num_blocks=8)
    first, second, third = (worker.reserve(make_client(prompt(n, 100 * n)).request(room=n), 0.0) for n in (13, 14, 2))
    assert worker.scheduler.incoming.grants() == (first,)
    assert worker.scheduler.incoming.grants() == ()
    worker.scheduler.incoming.abandon(first)
    assert worker.scheduler.incoming.grants() == ()
    assert worker.pool.counts().quarantined == 5
    worker.scheduler.incoming.released(first)
    assert worker.scheduler.incoming.grants() == (second, third)
    for transfer in (second, third):
        worker.scheduler.incoming.abandon(transfer)
        worker.scheduler.incoming.released(transfer)
    worker.check()
    assert worker.scheduler.idle
    assert worker.pool.counts().free == 8


def test_a_late_write_into_quarantined_blocks_hurts_nobody(make_worker, make_client):
    worker = make_worker(num_blocks=12)
    transfer = worker.reserve(make_client(prompt(9)).request(room=1), 0.0)
    worker.scheduler.incoming.grants()
    late = list(transfer.blocks)
    worker.scheduler.incoming.abandon(transfer)
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
    written = worker.reserve(make_client(prompt(3, 50)).request(room=1), 0.0)
    fresh = worker.reserve(make_client(prompt(3, 70)).request(room=2), 0.0)
    assert worker.scheduler.incoming.grants() == (written, fresh)
    worker.scheduler.incoming.written(written)
    worker.run()
    assert worker.scheduler.incoming.revocations() == (fresh,)
    assert not worker.client.complete
    return worker, fresh


def test_running_sequences_take_back_unwritten_grants(pressed):
    worker, fresh = pressed
    worker.scheduler.incoming.revoked(fresh)
    assert worker.pool.counts().quarantined == 0
    worker.run()
    assert worker.client.complete
    assert worker.scheduler.incoming.grants() == (fresh,)
    worker.check()


def test_a_grant_that_turns_out_to_be_written_is_kept(pressed):
    worker, fresh = pressed
    worker.scheduler.incoming.written(fresh)
    worker.scheduler.incoming.revoked(fresh)
    worker.run()
    assert fresh.state is IncomingState.WRITING
    assert worker.scheduler.incoming.revocations() == ()


def test_a_grant_that_is_being_revoked_may_be_abandoned(pressed):
    worker, fresh = pressed
    worker.scheduler.incoming.abandon(fresh)
    worker.scheduler.incoming.revoked(fresh)
    assert worker.pool.counts().quarantined == 2
    worker.scheduler.incoming.released(fresh)
    worker.run()
    assert worker.client.complete
    worker.check()


def test_a_grant_that_nobody_heard_of_is_undone_without_quarantine(make_worker, make_client):
    worker = make_worker(num_blocks=6, growth_tokens=0)
    client = make_client(prompt(7), max_tokens=17)
    worker.add(client)
    worker.step()
    transfer = worker.reserve(make_client(prompt(3, 50)).request(room=1), 0.0)
    worker.run()
    assert client.complete
    assert worker.scheduler.incoming.revocations() == ()
    assert worker.scheduler.incoming.grants() == (transfer,)


def test_nothing_is_quarantined_for_a_grant_that_nobody_heard_of(make_worker, make_client):
    worker = make_worker()
    transfer = worker.reserve(make_client(prompt(3)).request(room=1), 0.0)
    worker.add(make_client(prompt(3, 50)))
    worker.step()
    assert transfer.state is IncomingState.ALLOCATED
    worker.scheduler.incoming.abandon(transfer)
    assert worker.scheduler.incoming.grants() == ()
    worker.run()
    assert worker.scheduler.idle


@pytest.fixture
def granted(make_worker, make_client):
    """A worker of 9 blocks: one sequence runs in 2, and the others are granted, 2, 2 and 3 of them, in this order."""
    worker = make_worker(num_blocks=9, growth_tokens=0)
    worker.client = make_client(prompt(7), max_tokens=25)
    worker.request = worker.add(worker.client)
    worker.step()
    transfers = tuple(
        worker.reserve(make_client(prompt(length, 50 * room)).request(room=room), 0.0)
        for room, length in ((1, 3), (2, 3), (3, 7))
    )
    assert worker.scheduler.incoming.grants() == transfers
    assert worker.pool.available == 0
    return worker, transfers


def test_the_newest_grant_is_revoked_first_and_no_more_than_are_needed(granted):
    worker, (_, _, newest) = granted
    worker.run()
    assert worker.scheduler.incoming.revocations() == (newest,)


def test_what_was_written_to_is_not_revoked(granted):
    worker, (oldest, middle, newest) = granted
    worker.scheduler.incoming.written(newest)
    worker.run()
    assert worker.scheduler.incoming.revocations() == (middle,)
    assert oldest.state is IncomingState.GRANTED


def test_blocks_that_are_on_their_way_are_waited_for(granted):
    """Those of a grant that is being revoked, and those in quarantine."""
    worker, (_, middle, newest) = granted
    worker.scheduler.incoming.abandon(newest)
    for _ in range(4):
        worker.step()
    assert worker.scheduler.incoming.revocations() == ()
    worker.scheduler.incoming.released(newest)
    while worker.step():
        pass
    assert worker.scheduler.incoming.revocations() == (middle,)
    for _ in range(4):
        worker.step()
    assert worker.scheduler.incoming.revocations() == ()


def test_as_many_grants_are_revoked_as_are_needed(granted, make_client):
    """A granted prefill that waits needs more than one grant has."""
    worker, (_, middle, newest) = granted
    request = worker.add(make_client(prompt(17, 500)), room=9)
    worker.grant(request)
    worker.step()
    assert worker.scheduler.incoming.revocations() == (newest, middle)


def test_no_grant_is_revoked_twice(granted, make_client):
    worker, (oldest, middle, newest) = granted
    request = worker.add(make_client(prompt(29, 500)), room=9)
    worker.grant(request)
    worker.step()
    assert worker.scheduler.incoming.revocations() == (newest, middle, oldest)
    worker.step()
    assert worker.scheduler.incoming.revocations() == ()


def test_only_older_attempts_of_a_transfer_are_cancelled(make_worker, make_client):
    worker = make_worker()
    client, other = make_client(prompt(5)), make_client(prompt(5, 50))
    transfer = worker.reserve(client.request(room=1, attempt=3), 0.0)
    worker.reserve(other.request(room=2), 0.0)
    assert worker.scheduler.cancel(client.id, 2).incoming == ()
    assert worker.scheduler.cancel(client.id, 3).incoming == (transfer,)


def test_a_grant_that_nobody_revoked_is_not_given_back(granted):
    worker, (_, _, newest) = granted
    worker.scheduler.incoming.revoked(newest)
    assert newest.state is IncomingState.GRANTED
    assert len(newest.blocks) == 3


def test_revoked_transfers_are_granted_again_in_their_turn(granted):
    worker, transfers = granted
    revoked = []
    for _ in range(4):
        worker.run()
        for transfer in worker.scheduler.incoming.revocations():
            waiting = worker.scheduler.load().waiting
            worker.scheduler.incoming.revoked(transfer)
            assert transfer.state is IncomingState.PENDING
            assert (transfer.blocks, transfer.fresh) == ([], 0)
            assert worker.scheduler.load().waiting == waiting + 1
            revoked.append(transfer)
    assert worker.client.complete
    assert tuple(reversed(revoked)) == transfers
    assert worker.scheduler.incoming.grants() == transfers
    assert worker.scheduler.load().waiting == 0
    worker.check()


@pytest.mark.parametrize(
    ("computed", "sampled"),
    [(9, {}), (6, {0: [Sampled(1)]}), (6, {1: [Sampled(1)]}), (7, {0: [Sampled(1)], 1: [Sampled(1)]}), (-1, {})],
)
def test_a_handoff_that_does_not_match_changes_nothing(make_worker, make_client, computed, sampled):
    worker = make_worker()
    transfer = worker.reserve(make_client(prompt(6), choices=(0, 1)).request(room=1), 0.0)
    worker.scheduler.incoming.grants()
    with pytest.raises(ValueError, match=r"KV of|some choices"):
        worker.scheduler.incoming.adopt(transfer, computed, sampled)
    worker.scheduler.incoming.abandon(transfer)
    worker.scheduler.incoming.released(transfer)
    worker.check()
    assert worker.scheduler.idle


def test_no_blocks_can_be_adopted_before_the_grant_or_twice(make_worker, make_client):
    worker = make_worker()
    transfer = worker.reserve(make_client(prompt(6)).request(room=1), 0.0)
    with pytest.raises(IllegalTransferMove):
        worker.scheduler.incoming.adopt(transfer, 0, {})
    worker.scheduler.incoming.grants()
    worker.scheduler.incoming.adopt(transfer, 0, {})
    with pytest.raises(IllegalTransferMove):
        worker.scheduler.incoming.adopt(transfer, 0, {})


def test_cancel_and_deadline_end_reservations(make_worker, make_client):
    worker = make_worker(num_blocks=8)
    client = make_client(prompt(13))
    granted = worker.reserve(client.request(room=1), 0.0)
    pending = worker.reserve(make_client(prompt(13, 50)).request(room=2, deadline=5.0), 0.0)
    worker.scheduler.incoming.grants()
    assert worker.scheduler.expire(6.0).incoming == (pending,)
    assert worker.scheduler.cancel(client.id, 1).incoming == (granted,)
    assert (pending.state, granted.state) == (IncomingState.ABANDONED, IncomingState.QUARANTINED)
    worker.scheduler.incoming.released(granted)
    worker.check()
    assert worker.scheduler.idle


def test_incoming_transfers_are_bounded(make_worker, make_client):
    worker = make_worker(num_blocks=8, max_waiting=1)
    worker.reserve(make_client(prompt(3)).request(room=1), 0.0)
    with pytest.raises(RequestRejected):
        worker.reserve(make_client(prompt(3, 9)).request(room=2), 0.0)
    with pytest.raises(RequestRejected) as refusal:
        worker.reserve(make_client(prompt(60)).request(room=3), 0.0)
    assert refusal.value.code == "invalid"


def test_an_answer_to_a_revocation_of_one_that_is_over_changes_nothing(granted):
    worker, (_, _, newest) = granted
    worker.run()
    assert newest.state is IncomingState.REVOKING
    worker.scheduler.incoming.abandon(newest)
    quarantined = list(newest.blocks)
    worker.scheduler.incoming.revoked(newest)
    assert newest.state is IncomingState.QUARANTINED
    assert newest.blocks == quarantined
    assert worker.pool.counts().quarantined == 3
    worker.check()


def test_the_blocks_of_a_grant_are_its_own_until_it_is_released_and_free_once(granted):
    worker, (oldest, _, _) = granted
    worker.cancel(worker.client)
    worker.scheduler.incoming.abandon(oldest)
    blocks = list(oldest.blocks)
    worker.scheduler.incoming.abandon(oldest)
    assert oldest.blocks == blocks
    assert worker.pool.counts().quarantined == 2
    worker.scheduler.incoming.released(oldest)
    worker.scheduler.incoming.released(oldest)
    assert oldest.blocks == []
    assert worker.pool.counts().quarantined == 0
    worker.check()


def test_an_incoming_transfer_ends_at_its_deadline_and_not_before(make_worker, make_client):
    worker = make_worker()
    transfer = worker.reserve(make_client(prompt(5)).request(room=1, deadline=7.0), 0.0)
    assert worker.scheduler.expire(6.9).incoming == ()
    assert worker.scheduler.expire(7.0).incoming == (transfer,)


@pytest.mark.parametrize(("choices", "grants"), [((0, 1), 1), ((0, 1, 2), 0)])
def test_a_grant_takes_no_more_slots_than_there_are(make_worker, make_client, choices, grants):
    worker = make_worker(max_running=3)
    worker.add(make_client(prompt(3), max_tokens=9))
    worker.step()
    worker.reserve(make_client(prompt(5, 50), choices=choices).request(room=1), worker.now)
    assert len(worker.scheduler.incoming.grants()) == grants


def test_every_grant_takes_its_slots(make_worker, make_client):
    worker = make_worker(max_running=2)
    for room in range(3):
        worker.reserve(make_client(prompt(3, 50 * room)).request(room=room), 0.0)
    assert len(worker.scheduler.incoming.grants()) == 2


def test_cached_blocks_of_a_transfer_are_not_stored_again(make_worker, make_client):
    """What was adopted over cached blocks tells nothing twice, and computes on behind them."""
    worker = make_worker()
    worker.add(make_client(prompt(14)))
    worker.run()
    client = make_client((*prompt(12), 50, 51))
    worker.clients[client.id] = client
    transfer = worker.reserve(client.request(room=1), worker.now)
    worker.scheduler.incoming.grants()
    assert (transfer.cached, transfer.fresh) == (3, 2)
    worker.scheduler.incoming.adopt(transfer, 3, {})
    request = worker.scheduler.requests(client.id)[0]
    assert (request.computed, request.stored, request.farthest) == (12, 3, 12)
    worker.run()
    assert client.complete


@pytest.mark.parametrize(
    ("length", "computed", "begin"),
    [*((8, computed, computed) for computed in (0, 3, 4, 7)), (3, 3, 0), (8, 8, 4), (9, 9, 8), (10, 10, 8)],
)
def test_at_least_one_token_of_an_adopted_sequence_is_computed_here(make_worker, make_client, length, computed, begin):
    """Where its KV is complete and no token follows, the last block is computed anew."""
    worker = make_worker()
    client = make_client(prompt(length))
    worker.clients[client.id] = client
    transfer = worker.reserve(client.request(room=1), 0.0)
    worker.scheduler.incoming.grants()
    table = list(transfer.blocks)
    values = worker.kv(client.prompt)
    worker.write({table[0]: values[:4], table[1]: values[4:8]})
    worker.scheduler.incoming.adopt(transfer, computed, {})
    request = worker.scheduler.requests(client.id)[0]
    assert (request.computed, request.farthest) == (begin, begin)
    worker.run()
    assert client.complete
    worker.check()


def test_what_is_computed_anew_of_cached_blocks_is_stored_anew(make_worker, make_client):
    """All of the prompt is cached and no token follows: its last block is computed here and is the cached one."""
    worker = make_worker()
    worker.add(make_client(prompt(8), max_tokens=1))
    worker.run()
    client = make_client(prompt(8), max_tokens=6)
    worker.clients[client.id] = client
    transfer = worker.reserve(client.request(room=1), worker.now)
    worker.scheduler.incoming.grants()
    assert transfer.cached == 2
    cached = list(transfer.blocks[:2])
    worker.scheduler.incoming.adopt(transfer, 8, {})
    request = worker.scheduler.requests(client.id)[0]
    assert (request.computed, request.stored, request.blocks) == (4, 1, cached[:1])
    worker.step()
    assert request.blocks[:2] == cached
    worker.run()
    assert client.complete


@pytest.mark.parametrize("seen", [0, 1])
def test_what_follows_the_end_of_a_sequence_is_not_told(make_worker, make_client, seen):
    """The sender sampled on after the stop token, or after the last one asked for."""
    worker = make_worker()
    client = make_client(prompt(5), max_tokens=3)
    worker.clients[client.id] = client
    known, rest = client.expected[0][:seen], client.expected[0][seen:]
    request = client.request(room=1, tokens=[*client.prompt, *known])
    transfer = worker.reserve(request, 0.0)
    worker.scheduler.incoming.grants()
    sampled = [Sampled(token) for token in (*rest, 998, 999)]
    (emission,) = worker.scheduler.incoming.adopt(transfer, 0, {0: sampled})
    assert [one.token for one in emission.sampled] == rest
    assert (emission.index, emission.finish) == (seen, "length")
    assert worker.scheduler.idle


def test_nobody_overtakes_a_transfer_that_came_first_and_must_wait(make_worker, make_client):
    worker = make_worker(num_blocks=8, growth_tokens=0)
    running = make_client(prompt(11), max_tokens=4)
    worker.add(running)
    worker.step()
    transfer = worker.reserve(make_client(prompt(20, 50)).request(room=1), worker.now)
    later = worker.add(make_client(prompt(3, 90), max_tokens=1))
    while not running.complete:
        assert later.state is RequestState.WAITING
        worker.step()
    assert worker.scheduler.incoming.grants() == (transfer,)
    worker.run()
    assert later.finish == "length"


def test_a_transfer_waits_for_no_prompt_that_only_waits_for_its_turn_to_be_computed(make_worker, make_client):
    """A decode worker may have a long queue of prompts of its own; sequences that come need blocks alone."""
    worker = make_worker(num_blocks=100, chunk_tokens=8)
    for start in (50, 100):
        worker.add(make_client(prompt(40, start), max_tokens=1))
    worker.step()
    transfer = worker.reserve(make_client(prompt(20, 200)).request(room=1), worker.now)
    worker.step()
    assert worker.scheduler.incoming.grants() == (transfer,)


def adopt_uncomputed(worker, client, **overrides):
    """A sequence of another worker, all of whose prompt is computed here."""
    worker.clients[client.id] = client
    transfer = worker.reserve(client.request(room=1, **overrides), 0.0)
    assert worker.scheduler.incoming.grants() == (transfer,)
    worker.scheduler.incoming.adopt(transfer, 0, {})
    return transfer.request


def test_adopted_sequences_that_compute_their_prompts_here_share_the_tokens_of_a_step(make_worker, make_client):
    worker = make_worker(chunk_tokens=8)
    for start in (50, 100):
        adopt_uncomputed(worker, make_client(prompt(12, start)))
    worker.run()
    assert [[len(row.tokens) for row in batch.rows] for batch in worker.batches[:3]] == [[8], [4, 4], [1, 8]]


def test_prompts_that_go_first_do_not_stall_decoding(make_worker, make_client):
    """One of them takes all prompt tokens of the step, so that the other gets none."""
    worker = make_worker(chunk_tokens=8)
    decoding = make_client(prompt(3, 200), max_tokens=9)
    worker.add(decoding)
    worker.step()
    for start in (50, 100):
        adopt_uncomputed(worker, make_client(prompt(12, start), max_tokens=1), priority=1)
    worker.run()
    rows = [[len(row.tokens) for row in batch.rows] for batch in worker.batches]
    assert rows[1:5] == [[8, 1], [4, 4, 1], [8, 1], [1]]


def test_who_gives_way_itself_takes_nothing_of_others(make_worker, make_client):
    """Of a prompt, say, for which the step has no tokens left."""
    worker = make_worker(num_blocks=10, growth_tokens=0, chunk_tokens=8)
    decoding = worker.add(make_client(prompt(7, 200), max_tokens=9))
    worker.step()
    worker.step()
    first, second = (adopt_uncomputed(worker, make_client(prompt(12, start)), priority=1) for start in (50, 100))
    assert worker.pool.available == 0
    worker.begin()
    assert decoding.state is RequestState.WAITING
    assert (first.state, second.state) == (RequestState.RUNNING, RequestState.RUNNING)


def test_a_worker_with_a_transfer_is_not_idle(make_worker, make_client):
    """Pending, granted or in quarantine."""
    worker = make_worker()
    transfer = worker.reserve(make_client(prompt(3)).request(room=1), 0.0)
    assert not worker.scheduler.idle
    worker.scheduler.incoming.grants()
    assert not worker.scheduler.idle
    worker.scheduler.incoming.abandon(transfer)
    assert not worker.scheduler.idle
    worker.scheduler.incoming.released(transfer)
    assert worker.scheduler.idle


def test_no_more_kv_is_adopted_than_was_granted(make_worker, make_client):
    """The sender decoded on, further than the blocks that it was given reach."""
    worker = make_worker()
    transfer = worker.reserve(make_client(prompt(5)).request(room=1), 0.0)
    worker.scheduler.incoming.grants()
    assert len(transfer.blocks) == 3
    sampled = {0: [Sampled(token) for token in range(10)]}
    with pytest.raises(ValueError, match="KV of 13 tokens"):
        worker.scheduler.incoming.adopt(transfer, 13, sampled)
    assert transfer.state is IncomingState.GRANTED


def test_a_grant_that_is_being_revoked_is_waited_for(granted, make_client):
    worker, (_, _, newest) = granted
    request = worker.add(make_client(prompt(9, 500)), room=9)
    worker.grant(request)
    worker.step()
    assert worker.scheduler.incoming.revocations() == (newest,)
    worker.step()
    assert worker.scheduler.incoming.revocations() == ()


def test_a_sequence_that_is_paused_before_it_is_adopted_makes_no_tokens(make_worker, make_client):
    worker = make_worker()
    paused, other = (make_client(prompt(6, start)) for start in (0, 50))
    transfers = []
    for room, client in enumerate((paused, other)):
        worker.clients[client.id] = client
        transfers.append(worker.reserve(client.request(room=room), 0.0))
    worker.scheduler.incoming.grants()
    worker.scheduler.pause(paused.id, 1, True)
    for transfer in transfers:
        worker.scheduler.incoming.adopt(transfer, 0, {})
    worker.run()
    assert other.complete
    assert not paused.got[0]
    worker.scheduler.pause(paused.id, 1, False)
    worker.run()
    assert paused.complete


def test_choices_without_a_first_token_fork_here(make_worker, make_client):
    worker = make_worker()
    client = make_client(prompt(6), choices=(0, 1))
    worker.clients[client.id] = client
    transfer = worker.reserve(client.request(room=1), 0.0)
    worker.scheduler.incoming.grants()
    assert worker.scheduler.incoming.adopt(transfer, 0, {}) == ()
    worker.run()
    assert client.complete
