"""Books of a receiver: incoming transfers, grants, their revocation, quarantine.

What each event makes of a transfer in each state is in test_transfers.
"""

import pytest
from scheduled_worker import Client, Worker, all_kv, ask, prompt

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.handoff.transfers import IncomingState
from legato_engine.scheduler.requests.limits import RequestRejected
from legato_engine.scheduler.requests.request import RequestState


def sizes(batches):
    return [[len(row.tokens) for row in batch.rows] for batch in batches]


def adopted(worker, client, **overrides):
    """A sequence of another worker that goes on here without KV."""
    worker.adopt(worker.granted(client, **overrides))
    return worker.scheduler.requests(client.id)[0]


def end(worker, transfer):
    """It is given up, and no write to it is on its way."""
    worker.incoming.abandon(transfer)
    worker.incoming.on_released(transfer)
    worker.check()


def test_incoming_transfers_queue_in_order_until_there_is_room():
    worker = Worker(num_blocks=8)
    first, second, third = (worker.reserve(ask(n, 100 * n), room=n) for n in (13, 14, 2))
    assert worker.incoming.grants() == (first,)
    assert worker.incoming.grants() == ()
    worker.incoming.abandon(first)
    assert worker.incoming.grants() == ()
    assert worker.counts.quarantined == 5
    worker.incoming.on_released(first)
    assert worker.incoming.grants() == (second, third)
    for transfer in (second, third):
        end(worker, transfer)
    assert (worker.idle, worker.counts.free) == (True, 8)


def test_a_grant_that_nobody_heard_of_is_undone_without_quarantine():
    worker = Worker(num_blocks=6, growth_tokens=0)
    worker.add(client := ask(7, max_tokens=17))
    worker.step()
    transfer = worker.reserve(ask(3, 50))
    worker.run(client)
    assert worker.incoming.revocations() == ()
    assert worker.incoming.grants() == (transfer,)


@pytest.fixture
def granted():
    """A worker of 9 blocks: one sequence runs in 2, and the others are granted, 2, 2 and 3 of them, in this order."""
    worker = Worker(num_blocks=9, growth_tokens=0)
    worker.add(ask(7, max_tokens=25))
    worker.step()
    transfers = tuple(worker.reserve(ask(length, 50 * room), room=room) for room, length in ((1, 3), (2, 3), (3, 7)))
    assert worker.incoming.grants() == transfers
    assert worker.pool.available == 0
    return worker, transfers


@pytest.mark.parametrize(("written", "revoked"), [((), 2), ((2,), 1)])
def test_only_the_newest_grant_that_was_not_written_to_is_revoked(granted, written, revoked):
    worker, transfers = granted
    for index in written:
        worker.incoming.on_written(transfers[index])
    worker.run()
    assert worker.incoming.revocations() == (transfers[revoked],)
    assert transfers[0].state is IncomingState.GRANTED


def test_blocks_that_are_on_their_way_are_waited_for(granted):
    """Blocks of a grant that is being revoked, and those in quarantine."""
    worker, (_, middle, newest) = granted
    worker.incoming.abandon(newest)
    worker.steps(4)
    assert worker.incoming.revocations() == ()
    worker.incoming.on_released(newest)
    worker.run()
    assert worker.incoming.revocations() == (middle,)
    worker.steps(4)
    assert worker.incoming.revocations() == ()


@pytest.mark.parametrize(("length", "revoked"), [(9, 1), (17, 2), (29, 3)])
def test_as_many_grants_are_revoked_as_are_needed_and_each_once(granted, length, revoked):
    worker, transfers = granted
    request = worker.add(ask(length, 500), room=9)
    worker.grant(request)
    worker.step()
    assert worker.incoming.revocations() == transfers[::-1][:revoked]
    worker.step()
    assert worker.incoming.revocations() == ()


def test_revoked_transfers_are_granted_again_in_order(granted):
    worker, transfers = granted
    revoked = []
    for _ in range(4):
        worker.run()
        for transfer in worker.incoming.revocations():
            waiting = worker.load.waiting
            worker.incoming.on_revoked(transfer)
            assert (transfer.state, transfer.blocks, transfer.fresh) == (IncomingState.PENDING, [], 0)
            assert worker.load.waiting == waiting + 1
            revoked.append(transfer)
    assert next(iter(worker.clients.values())).complete
    assert tuple(reversed(revoked)) == transfers == worker.incoming.grants()
    assert worker.load.waiting == 0
    worker.check()


@pytest.mark.parametrize(
    ("computed", "sampled", "reason"),
    [
        (9, {}, "KV of"),
        (-1, {}, "KV of"),
        (7, {0: [Sampled(1)], 1: [Sampled(1)]}, "KV of"),
        (6, {0: [Sampled(1)]}, "some choices"),
        (6, {1: [Sampled(1)]}, "some choices"),
        # The sender decoded on, further than the three blocks that it was granted reach.
        (13, {choice: [Sampled(token) for token in range(10)] for choice in (0, 1)}, "KV of 13 tokens"),
    ],
)
def test_a_handoff_that_does_not_match_changes_nothing(computed, sampled, reason):
    worker = Worker()
    transfer = worker.granted(ask(6, choices=(0, 1)))
    assert len(transfer.blocks) == 3
    with pytest.raises(ValueError, match=reason):
        worker.adopt(transfer, computed, sampled)
    assert transfer.state is IncomingState.GRANTED
    end(worker, transfer)
    assert worker.idle


@pytest.mark.parametrize(("length", "code"), [(3, "overloaded"), (60, "invalid")])
def test_incoming_transfers_are_bounded(length, code):
    worker = Worker(num_blocks=8, max_waiting=1)
    worker.reserve(ask(3))
    with pytest.raises(RequestRejected) as refusal:
        worker.reserve(ask(length, 9), room=2)
    assert refusal.value.code == code


def test_a_transfer_ends_with_a_cancel_of_its_attempt_or_at_its_deadline_and_not_before():
    worker, client = Worker(), ask(5)
    other = worker.reserve(ask(5, 50), deadline=7.0)
    transfer = worker.reserve(client, attempt=3, room=2)
    scheduler = worker.scheduler
    ended = [
        scheduler.cancel(client.id, 2),
        scheduler.cancel(client.id, 3),
        scheduler.expire(6.9),
        scheduler.expire(7.0),
    ]
    assert [one.incoming for one in ended] == [(), (transfer,), (), (other,)]


@pytest.mark.parametrize(
    ("first", "client", "cached", "fresh", "computed", "begin", "kept"),
    [
        (ask(14), Client((*prompt(12), 50, 51)), 3, 2, 3, 12, 5),
        (
            ask(8, max_tokens=1),
            ask(8, max_tokens=6),
            2,
            1,
            8,
            4,
            1,
        ),  # no token follows: its last block is computed here
    ],
)
def test_cached_blocks_of_a_transfer_are_not_stored_again(first, client, cached, fresh, computed, begin, kept):
    """Nor are their events repeated, and the sequence is computed on from their end."""
    worker = Worker()
    worker.add(first)
    worker.run()
    transfer = worker.granted(client)
    assert (transfer.cached, transfer.fresh) == (cached, fresh)
    blocks = list(transfer.blocks)
    worker.adopt(transfer, computed)
    (request,) = worker.scheduler.requests(client.id)
    assert (request.computed, request.stored, request.farthest) == (begin, begin // 4, begin)
    assert request.blocks == blocks[:kept]
    worker.step()
    assert request.blocks[:cached] == blocks[:cached]
    worker.run(client)


@pytest.mark.parametrize(
    ("length", "computed", "begin"),
    [*((8, computed, computed) for computed in (0, 3, 4, 7)), (3, 3, 0), (8, 8, 4), (9, 9, 8), (10, 10, 8)],
)
def test_at_least_one_token_of_an_adopted_sequence_is_computed_here(length, computed, begin):
    """The last block is computed anew where its KV is complete and no token follows."""
    worker, client = Worker(), ask(length)
    transfer = worker.granted(client)
    values = all_kv(client.prompt)
    worker.write({transfer.blocks[0]: values[:4], transfer.blocks[1]: values[4:8]})
    worker.adopt(transfer, computed)
    (request,) = worker.scheduler.requests(client.id)
    assert (request.computed, request.farthest) == (begin, begin)
    worker.run(client)


@pytest.mark.parametrize("seen", [0, 1])
def test_tokens_after_the_end_of_a_sequence_are_dropped(seen):
    """The sender sampled on after the stop token, or after the last one asked for."""
    worker, client = Worker(), ask(5, max_tokens=3)
    known, rest = client.expected[0][:seen], client.expected[0][seen:]
    client.got[0] += known
    transfer = worker.granted(client, tokens=[*client.prompt, *known])
    (emission,) = worker.adopt(transfer, 0, {0: [Sampled(token) for token in (*rest, 998, 999)]})
    assert [one.token for one in emission.sampled] == rest
    assert (emission.index, emission.finish) == (seen, "length")
    assert worker.idle


def test_nobody_overtakes_a_transfer_that_came_first_and_must_wait():
    worker = Worker(num_blocks=8, growth_tokens=0)
    worker.add(running := ask(11, max_tokens=4))
    worker.step()
    transfer = worker.reserve(ask(20, 50))
    later = worker.add(ask(3, 90, max_tokens=1))
    while not running.complete:
        assert later.state is RequestState.WAITING
        worker.step()
    assert worker.incoming.grants() == (transfer,)
    worker.run()
    assert later.finish == "length"


def test_a_transfer_does_not_wait_for_prompts_whose_tokens_come_in_a_later_step():
    """A decode worker may have a long queue of prompts of its own; sequences that come need blocks alone."""
    worker = Worker(num_blocks=100, chunk_tokens=8)
    worker.add_all(ask(40, start, max_tokens=1) for start in (50, 100))
    worker.step()
    transfer = worker.reserve(ask(20, 200))
    worker.step()
    assert worker.incoming.grants() == (transfer,)


def test_adopted_sequences_that_compute_their_prompts_here_share_the_tokens_of_a_step():
    worker = Worker(chunk_tokens=8)
    for start in (50, 100):
        adopted(worker, ask(12, start))
    worker.run()
    assert sizes(worker.batches[:3]) == [[8], [4, 4], [1, 8]]


def test_prompts_that_go_first_do_not_stall_decoding():
    """One of them takes all prompt tokens of the step, so that the other gets none."""
    worker = Worker(chunk_tokens=8)
    worker.add(ask(3, 200, max_tokens=9))
    worker.step()
    for start in (50, 100):
        adopted(worker, ask(12, start, max_tokens=1), priority=1)
    worker.run()
    assert sizes(worker.batches[1:5]) == [[8, 1], [4, 4, 1], [8, 1], [1]]


def test_who_gives_way_itself_takes_nothing_of_others():
    """Such as a prompt for which the step has no tokens left."""
    worker = Worker(num_blocks=10, growth_tokens=0, chunk_tokens=8)
    decoding = worker.add(ask(7, 200, max_tokens=9))
    worker.steps(2)
    prompts = [adopted(worker, ask(12, start), priority=1) for start in (50, 100)]
    assert worker.pool.available == 0
    worker.begin()
    assert decoding.state is RequestState.WAITING
    assert [request.state for request in prompts] == [RequestState.RUNNING] * 2


def test_a_sequence_that_is_paused_before_it_is_adopted_makes_no_tokens():
    worker = Worker()
    paused, other = (ask(6, start) for start in (0, 50))
    transfers = [worker.granted(client) for client in (paused, other)]
    worker.pause(paused)
    for transfer in transfers:
        worker.adopt(transfer)
    worker.run(other)
    assert not paused.got[0]
    worker.resume(paused)
    worker.run(paused)


def test_choices_without_a_first_token_fork_here():
    worker = Worker()
    transfer = worker.granted(client := ask(6, choices=(0, 1)))
    assert worker.adopt(transfer) == ()
    worker.run(client)
