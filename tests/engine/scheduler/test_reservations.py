"""Books of a receiver: reservations, grants, their revocation, quarantine."""

import pytest

from legato_engine.scheduler.batch import Sampled
from legato_engine.scheduler.limits import Refused


def prompt(length, start=0):
    return tuple(range(start, start + length))


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
