"""Books of a receiver: incoming transfers, grants, their revocation, quarantine.

What each event makes of a transfer in each state is in test_transfers.
"""

import pytest
from scheduled_worker import Client, Worker, ask, prompt

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.limits import RequestRejected
from legato_engine.scheduler.request import RequestState
from legato_engine.scheduler.transfers import IncomingState


def sizes(batches):
    return [[len(row.tokens) for row in batch.rows] for batch in batches]


def adopted(worker, client, computed=0, sampled=None, **overrides):
    """A sequence of another worker that goes on here, of which KV of `computed` tokens came along."""
    worker.adopt(worker.granted(client, **overrides), computed, sampled)
    return worker.scheduler.requests(client.id)[0]


def test_incoming_transfers_queue_in_order_until_there_is_room():
    worker = Worker(num_blocks=8)
    first, second, third = (worker.reserve(ask(n, 100 * n), room=n) for n in (13, 14, 2))
    assert worker.incoming.grants() == (first,)
    assert worker.incoming.grants() == ()
    worker.incoming.abandon(first)
    assert worker.incoming.grants() == ()
    assert worker.counts.quarantined == 5
    worker.incoming.released(first)
    assert worker.incoming.grants() == (second, third)
    for transfer in (second, third):
        worker.incoming.abandon(transfer)
        worker.incoming.released(transfer)
    worker.check()
    assert worker.idle
    assert worker.counts.free == 8


def test_a_late_write_into_quarantined_blocks_hurts_nobody():
    worker = Worker(num_blocks=12)
    transfer = worker.granted(ask(9))
    late = list(transfer.blocks)
    worker.incoming.abandon(transfer)
    worker.add(client := ask(9, 50, max_tokens=8))
    while worker.step():
        worker.write({block: [0, 0, 0, 0] for block in late})
    assert client.complete


@pytest.fixture
def pressed():
    """A worker whose running sequence needs the blocks of two grants, of which one was written to."""
    worker = Worker(num_blocks=8, growth_tokens=0)
    worker.add(client := ask(7, max_tokens=17))
    worker.step()
    written, fresh = worker.reserve(ask(3, 50)), worker.reserve(ask(3, 70), room=2)
    assert worker.incoming.grants() == (written, fresh)
    worker.incoming.written(written)
    worker.run()
    assert worker.incoming.revocations() == (fresh,)
    assert not client.complete
    return worker, client, fresh


def test_running_sequences_take_back_unwritten_grants(pressed):
    worker, client, fresh = pressed
    worker.incoming.revoked(fresh)
    assert worker.counts.quarantined == 0
    worker.run(client)
    assert worker.incoming.grants() == (fresh,)
    worker.check()


def test_a_grant_that_turns_out_to_be_written_is_kept(pressed):
    worker, _, fresh = pressed
    worker.incoming.written(fresh)
    worker.incoming.revoked(fresh)
    worker.run()
    assert fresh.state is IncomingState.WRITING
    assert worker.incoming.revocations() == ()


def test_a_grant_that_is_being_revoked_may_be_abandoned(pressed):
    worker, client, fresh = pressed
    worker.incoming.abandon(fresh)
    worker.incoming.revoked(fresh)
    assert worker.counts.quarantined == 2
    worker.incoming.released(fresh)
    worker.run(client)
    worker.check()


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


def test_the_newest_grant_is_revoked_first_and_no_more_than_are_needed(granted):
    worker, (_, _, newest) = granted
    worker.run()
    assert worker.incoming.revocations() == (newest,)


def test_what_was_written_to_is_not_revoked(granted):
    worker, (oldest, middle, newest) = granted
    worker.incoming.written(newest)
    worker.run()
    assert worker.incoming.revocations() == (middle,)
    assert oldest.state is IncomingState.GRANTED


def test_blocks_that_are_on_their_way_are_waited_for(granted):
    """Those of a grant that is being revoked, and those in quarantine."""
    worker, (_, middle, newest) = granted
    worker.incoming.abandon(newest)
    worker.steps(4)
    assert worker.incoming.revocations() == ()
    worker.incoming.released(newest)
    worker.run()
    assert worker.incoming.revocations() == (middle,)
    worker.steps(4)
    assert worker.incoming.revocations() == ()


@pytest.mark.parametrize(("length", "revoked"), [(9, 1), (17, 2), (29, 3)])
def test_as_many_grants_are_revoked_as_are_needed_and_each_once(granted, length, revoked):
    """For a granted prefill that waits."""
    worker, transfers = granted
    request = worker.add(ask(length, 500), room=9)
    worker.grant(request)
    worker.step()
    assert worker.incoming.revocations() == transfers[::-1][:revoked]
    worker.step()
    assert worker.incoming.revocations() == ()


def test_only_older_attempts_of_a_transfer_are_cancelled():
    worker, client = Worker(), ask(5)
    transfer = worker.reserve(client, attempt=3)
    worker.reserve(ask(5, 50), room=2)
    assert worker.scheduler.cancel(client.id, 2).incoming == ()
    assert worker.scheduler.cancel(client.id, 3).incoming == (transfer,)


def test_revoked_transfers_are_granted_again_in_their_turn(granted):
    worker, transfers = granted
    revoked = []
    for _ in range(4):
        worker.run()
        for transfer in worker.incoming.revocations():
            waiting = worker.load.waiting
            worker.incoming.revoked(transfer)
            assert (transfer.state, transfer.blocks, transfer.fresh) == (IncomingState.PENDING, [], 0)
            assert worker.load.waiting == waiting + 1
            revoked.append(transfer)
    assert next(iter(worker.clients.values())).complete
    assert tuple(reversed(revoked)) == transfers
    assert worker.incoming.grants() == transfers
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
    ],
)
def test_a_handoff_that_does_not_match_changes_nothing(computed, sampled, reason):
    worker = Worker()
    transfer = worker.granted(ask(6, choices=(0, 1)))
    with pytest.raises(ValueError, match=reason):
        worker.adopt(transfer, computed, sampled)
    worker.incoming.abandon(transfer)
    worker.incoming.released(transfer)
    worker.check()
    assert worker.idle


def test_no_more_kv_is_adopted_than_was_granted():
    """The sender decoded on, further than the blocks that it was given reach."""
    worker = Worker()
    transfer = worker.granted(ask(5))
    assert len(transfer.blocks) == 3
    with pytest.raises(ValueError, match="KV of 13 tokens"):
        worker.adopt(transfer, 13, {0: [Sampled(token) for token in range(10)]})
    assert transfer.state is IncomingState.GRANTED


@pytest.mark.parametrize(("length", "code"), [(3, "overloaded"), (60, "invalid")])
def test_incoming_transfers_are_bounded(length, code):
    worker = Worker(num_blocks=8, max_waiting=1)
    worker.reserve(ask(3))
    with pytest.raises(RequestRejected) as refusal:
        worker.reserve(ask(length, 9), room=2)
    assert refusal.value.code == code


def test_the_blocks_of_a_grant_are_its_own_until_it_is_released_and_free_once(granted):
    worker, (oldest, _, _) = granted
    for client in list(worker.clients.values())[:1]:
        worker.cancel(client)
    worker.incoming.abandon(oldest)
    blocks = list(oldest.blocks)
    worker.incoming.abandon(oldest)
    assert oldest.blocks == blocks
    assert worker.counts.quarantined == 2
    worker.incoming.released(oldest)
    worker.incoming.released(oldest)
    assert oldest.blocks == []
    assert worker.counts.quarantined == 0
    worker.check()


def test_an_incoming_transfer_ends_at_its_deadline_and_not_before():
    worker = Worker()
    transfer = worker.reserve(ask(5), deadline=7.0)
    assert worker.scheduler.expire(6.9).incoming == ()
    assert worker.scheduler.expire(7.0).incoming == (transfer,)


@pytest.mark.parametrize(("choices", "grants"), [((0, 1), 1), ((0, 1, 2), 0)])
def test_a_grant_takes_no_more_slots_than_there_are(choices, grants):
    worker = Worker(max_running=3)
    worker.add(ask(3, max_tokens=9))
    worker.step()
    worker.reserve(ask(5, 50, choices=choices))
    assert len(worker.incoming.grants()) == grants


def test_every_grant_takes_its_slots():
    worker = Worker(max_running=2)
    for room in range(3):
        worker.reserve(ask(3, 50 * room), room=room)
    assert len(worker.incoming.grants()) == 2


def test_cached_blocks_of_a_transfer_are_not_stored_again():
    """What was adopted over cached blocks tells nothing twice, and computes on behind them."""
    worker = Worker()
    worker.add(ask(14))
    worker.run()
    transfer = worker.granted(client := Client((*prompt(12), 50, 51)))
    assert (transfer.cached, transfer.fresh) == (3, 2)
    worker.adopt(transfer, 3)
    request = worker.scheduler.requests(client.id)[0]
    assert (request.computed, request.stored, request.farthest) == (12, 3, 12)
    worker.run(client)


@pytest.mark.parametrize(
    ("length", "computed", "begin"),
    [*((8, computed, computed) for computed in (0, 3, 4, 7)), (3, 3, 0), (8, 8, 4), (9, 9, 8), (10, 10, 8)],
)
def test_at_least_one_token_of_an_adopted_sequence_is_computed_here(length, computed, begin):
    """Where its KV is complete and no token follows, the last block is computed anew."""
    worker, client = Worker(), ask(length)
    transfer = worker.granted(client)
    values = worker.kv(client.prompt)
    worker.write({transfer.blocks[0]: values[:4], transfer.blocks[1]: values[4:8]})
    worker.adopt(transfer, computed)
    request = worker.scheduler.requests(client.id)[0]
    assert (request.computed, request.farthest) == (begin, begin)
    worker.run(client)
    worker.check()


def test_what_is_computed_anew_of_cached_blocks_is_stored_anew():
    """All of the prompt is cached and no token follows: its last block is computed here and is the cached one."""
    worker = Worker()
    worker.add(ask(8, max_tokens=1))
    worker.run()
    transfer = worker.granted(client := ask(8, max_tokens=6))
    assert transfer.cached == 2
    cached = list(transfer.blocks[:2])
    worker.adopt(transfer, 8)
    request = worker.scheduler.requests(client.id)[0]
    assert (request.computed, request.stored, request.blocks) == (4, 1, cached[:1])
    worker.step()
    assert request.blocks[:2] == cached
    worker.run(client)


@pytest.mark.parametrize("seen", [0, 1])
def test_what_follows_the_end_of_a_sequence_is_not_told(seen):
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


def test_a_transfer_waits_for_no_prompt_that_only_waits_for_its_turn_to_be_computed():
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
    """Of a prompt, say, for which the step has no tokens left."""
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
