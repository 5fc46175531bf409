"""Books of a receiver: reservations, grants, their revocation, quarantine."""

import pytest

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.limits import RequestRejected


def prompt(length, start=0):
    return tuple(range(start, start + length))


def test_reservations_queue_in_order_until_there_is_room(make_worker, make_client):
    worker = make_worker(num_blocks=8)
    first, second, third = (
        worker.scheduler.incoming.reserve(make_client(prompt(n, 100 * n)).request(room=n), 0.0) for n in (13, 14, 2)
    )
    assert worker.scheduler.incoming.grants() == (first,)
    assert worker.scheduler.incoming.grants() == ()
    worker.scheduler.incoming.abandon(first)
    assert worker.scheduler.incoming.grants() == ()
    assert worker.pool.counts().quarantined == 5
    worker.scheduler.incoming.released(first)
    assert worker.scheduler.incoming.grants() == (second, third)
    for reservation in (second, third):
        worker.scheduler.incoming.abandon(reservation)
        worker.scheduler.incoming.released(reservation)
    worker.check()
    assert worker.scheduler.idle
    assert worker.pool.counts().free == 8


def test_a_late_write_into_quarantined_blocks_hurts_nobody(make_worker, make_client):
    worker = make_worker(num_blocks=12)
    reservation = worker.scheduler.incoming.reserve(make_client(prompt(9)).request(room=1), 0.0)
    worker.scheduler.incoming.grants()
    late = list(reservation.blocks)
    worker.scheduler.incoming.abandon(reservation)
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
    written = worker.scheduler.incoming.reserve(make_client(prompt(3, 50)).request(room=1), 0.0)
    fresh = worker.scheduler.incoming.reserve(make_client(prompt(3, 70)).request(room=2), 0.0)
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
    assert fresh.granted
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
    reservation = worker.scheduler.incoming.reserve(make_client(prompt(3, 50)).request(room=1), 0.0)
    worker.run()
    assert client.complete
    assert worker.scheduler.incoming.revocations() == ()
    assert worker.scheduler.incoming.grants() == (reservation,)


def test_nothing_is_quarantined_for_a_grant_that_nobody_heard_of(make_worker, make_client):
    worker = make_worker()
    reservation = worker.scheduler.incoming.reserve(make_client(prompt(3)).request(room=1), 0.0)
    worker.add(make_client(prompt(3, 50)))
    worker.step()
    assert reservation.granted
    worker.scheduler.incoming.abandon(reservation)
    assert worker.scheduler.incoming.grants() == ()
    worker.run()
    assert worker.scheduler.idle


@pytest.mark.parametrize(
    ("computed", "sampled"),
    [(9, {}), (6, {0: [Sampled(1)]}), (6, {1: [Sampled(1)]}), (99, {0: [Sampled(1)], 1: [Sampled(1)]}), (-1, {})],
)
def test_a_handoff_that_does_not_match_changes_nothing(make_worker, make_client, computed, sampled):
    worker = make_worker()
    reservation = worker.scheduler.incoming.reserve(make_client(prompt(6), choices=(0, 1)).request(room=1), 0.0)
    worker.scheduler.incoming.grants()
    with pytest.raises(ValueError, match=r"KV of|some choices"):
        worker.scheduler.incoming.adopt(reservation, computed, sampled)
    worker.scheduler.incoming.abandon(reservation)
    worker.scheduler.incoming.released(reservation)
    worker.check()
    assert worker.scheduler.idle


def test_no_blocks_can_be_adopted_before_the_grant_or_twice(make_worker, make_client):
    worker = make_worker()
    reservation = worker.scheduler.incoming.reserve(make_client(prompt(6)).request(room=1), 0.0)
    with pytest.raises(ValueError, match="holds no blocks"):
        worker.scheduler.incoming.adopt(reservation, 0, {})
    worker.scheduler.incoming.grants()
    worker.scheduler.incoming.adopt(reservation, 0, {})
    with pytest.raises(ValueError, match="holds no blocks"):
        worker.scheduler.incoming.adopt(reservation, 0, {})


def test_cancel_and_deadline_end_reservations(make_worker, make_client):
    worker = make_worker(num_blocks=8)
    client = make_client(prompt(13))
    granted = worker.scheduler.incoming.reserve(client.request(room=1), 0.0)
    pending = worker.scheduler.incoming.reserve(make_client(prompt(13, 50)).request(room=2, deadline=5.0), 0.0)
    worker.scheduler.incoming.grants()
    assert worker.scheduler.expire(6.0).reservations == (pending,)
    assert worker.scheduler.cancel(client.id, 1).reservations == (granted,)
    worker.scheduler.incoming.released(granted)
    worker.check()
    assert worker.scheduler.idle


def test_reservations_are_bounded(make_worker, make_client):
    worker = make_worker(num_blocks=8, max_waiting=1)
    worker.scheduler.incoming.reserve(make_client(prompt(3)).request(room=1), 0.0)
    with pytest.raises(RequestRejected):
        worker.scheduler.incoming.reserve(make_client(prompt(3, 9)).request(room=2), 0.0)
    with pytest.raises(RequestRejected) as refusal:
        worker.scheduler.incoming.reserve(make_client(prompt(60)).request(room=3), 0.0)
    assert refusal.value.code == "invalid"
