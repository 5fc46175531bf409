"""Who gives way when blocks are short, and who does not."""

import pytest

from legato_engine.scheduler.planner import MOST_PREEMPTIONS
from legato_engine.scheduler.request import RequestState


def prompt(length, start=0):
    return tuple(range(start, start + length))


@pytest.fixture
def crowded(make_worker, make_client):
    """Three sequences of two full blocks each on a worker of six, so that whoever computes next needs another's."""
    worker = make_worker(num_blocks=6, growth_tokens=0, chunk_tokens=32)
    clients = [make_client(prompt(7, 100 * i), max_tokens=12) for i in range(3)]
    requests = [worker.add(client) for client in clients]
    worker.step()
    worker.step()
    assert [request.computed for request in requests] == [8, 8, 8]
    assert worker.pool.available == 0
    worker.clients_in_order = clients
    return worker, requests


def waiting(requests):
    return [index for index, request in enumerate(requests) if request.state is RequestState.WAITING]


def test_without_a_reason_the_newest_gives_way(crowded):
    worker, requests = crowded
    worker.begin()
    assert waiting(requests) == [2]


@pytest.mark.parametrize("paused", [0, 1])
def test_a_paused_sequence_gives_way_before_newer_ones(crowded, paused):
    worker, requests = crowded
    worker.scheduler.pause(requests[paused].id, 1, True)
    worker.begin()
    assert waiting(requests) == [paused]
    worker.end()
    worker.scheduler.pause(requests[paused].id, 1, False)
    worker.run()
    assert all(client.complete for client in worker.clients_in_order)


def test_of_two_paused_sequences_the_newer_gives_way(crowded):
    worker, requests = crowded
    for index in (0, 1):
        worker.scheduler.pause(requests[index].id, 1, True)
    worker.begin()
    assert waiting(requests) == [1]


def test_whose_blocks_a_peer_reads_does_not_give_way(crowded):
    worker, requests = crowded
    worker.scheduler.pause(requests[2].id, 1, True)
    worker.migrate(requests[2], 3)
    worker.begin()
    assert waiting(requests) == [1]


def test_who_was_preempted_twice_without_progress_does_not_give_way_again(crowded):
    worker, requests = crowded
    requests[2].preemptions = MOST_PREEMPTIONS
    worker.begin()
    assert waiting(requests) == [1]
    worker.end()
    assert requests[2].preemptions == 0
    worker.run()
    assert all(client.complete for client in worker.clients_in_order)


def test_one_preemption_is_no_protection(crowded):
    worker, requests = crowded
    requests[2].preemptions = MOST_PREEMPTIONS - 1
    worker.begin()
    assert waiting(requests) == [2]


def test_preemptions_count_until_the_sequence_is_further_than_it_ever_was(crowded):
    """Recomputing what it had before is no progress."""
    worker, requests = crowded
    worker.step()
    assert requests[2].preemptions == 1
    while requests[2].computed < 8:
        assert requests[2].preemptions == 1
        worker.step()
    while requests[2].computed < 9:
        worker.step()
    assert requests[2].preemptions == 0


def test_recomputing_all_it_had_is_no_progress(make_worker, make_client):
    worker = make_worker(chunk_tokens=8)
    request = worker.add(make_client(prompt(20)), farthest=8, preemptions=1)
    worker.step()
    assert (request.computed, request.preemptions) == (8, 1)
    worker.step()
    assert (request.computed, request.preemptions) == (16, 0)


def test_preemptions_are_counted(crowded):
    worker, requests = crowded
    for preemptions in (1, 2, 3):
        worker.scheduler._registry.preempt(requests[2])
        assert requests[2].preemptions == preemptions
        worker.scheduler._registry.run(requests[2])


def test_when_all_are_protected_somebody_gives_way_all_the_same(crowded):
    worker, requests = crowded
    for request in requests:
        request.preemptions = MOST_PREEMPTIONS
    worker.begin()
    assert waiting(requests) == [2]
    worker.end()
    worker.run()
    assert all(client.complete for client in worker.clients_in_order)


@pytest.mark.parametrize("preemptions", [0, MOST_PREEMPTIONS])
def test_blocks_of_one_who_gave_way_are_not_given_to_one_who_waits(make_worker, make_client, preemptions):
    """In the same step: what runs took them because it needs them, and a newcomer would have to give way next."""
    worker = make_worker(num_blocks=8, growth_tokens=0, chunk_tokens=32)
    requests = [worker.add(make_client(prompt(n, 50 * i), max_tokens=9)) for i, n in enumerate((7, 7, 15))]
    worker.step()
    worker.step()
    for request in requests:
        request.preemptions = preemptions
    worker.scheduler.pause(requests[2].id, 1, True)  # so that it is not first in the queue
    newcomer = worker.add(make_client((300,), max_tokens=1))
    worker.begin()
    assert waiting(requests) == [2]
    assert worker.pool.available == 2
    assert newcomer.state is RequestState.WAITING
    worker.end()
    worker.run()
    assert newcomer.finish == "length"


def test_blocks_of_a_grant_that_was_undone_may_be_given_to_one_who_waits(make_worker, make_client):
    """Nobody had to give way: a sequence that runs takes one of the two blocks, a newcomer the other."""
    worker = make_worker(num_blocks=4, growth_tokens=0)
    running = worker.add(make_client(prompt(7), max_tokens=9))
    worker.step()
    worker.reserve(make_client(prompt(3, 50)).request(room=1), 0.0)
    worker.step()
    assert worker.pool.available == 0
    newcomer = worker.add(make_client((300,), max_tokens=1), priority=9)
    worker.begin()
    assert len(running.blocks) == 3
    assert newcomer.state is RequestState.RUNNING


def test_one_who_gave_way_twice_keeps_its_blocks_when_it_alone_runs(make_worker, make_client):
    """What it lacks comes from elsewhere: here a peer writes to it."""
    worker = make_worker(num_blocks=4, growth_tokens=0)
    request = worker.add(make_client(prompt(7), max_tokens=9))
    worker.step()
    transfer = worker.reserve(make_client(prompt(3, 50)).request(room=1), 0.0)
    worker.scheduler.incoming.grants()
    worker.scheduler.incoming.written(transfer)
    worker.step()
    request.preemptions = MOST_PREEMPTIONS
    assert worker.step() is None
    assert (request.state, request.computed) == (RequestState.RUNNING, 8)


def test_who_gave_way_holds_nothing_and_goes_before_newcomers(crowded, make_client):
    worker, requests = crowded
    worker.step()
    preempted = requests[2]
    assert (preempted.blocks, preempted.computed, preempted.stored, preempted.writable) == ([], 0, 0, 0)
    worker.add(make_client(prompt(3, 300)), priority=9)
    assert next(iter(worker.scheduler._queue)) is preempted


@pytest.fixture
def slow(make_worker, make_client):
    """A worker of 8 blocks with a paused sequence, which holds 4 of them, and one that runs and holds 2."""
    worker = make_worker(num_blocks=8, growth_tokens=0)
    worker.paused = worker.add(make_client(prompt(11), max_tokens=8))
    worker.running = worker.add(make_client(prompt(4, 100), max_tokens=20))
    for _ in range(4):
        worker.step()
    worker.scheduler.pause(worker.paused.id, 1, True)
    assert (len(worker.paused.blocks), len(worker.running.blocks)) == (4, 2)
    assert worker.scheduler.load().paused_blocks == 4
    return worker


def test_a_paused_sequence_gives_way_to_one_who_waits(slow, make_client):
    """It may be long until whatever else runs gives its blocks back."""
    eager = make_client(prompt(15, 200), max_tokens=1)
    slow.add(eager)
    slow.step()
    assert slow.paused.state is RequestState.WAITING
    assert eager.complete
    assert slow.running.state is RequestState.RUNNING
    assert slow.scheduler.load().paused_blocks == 0


def test_a_paused_sequence_gives_way_to_one_that_comes_from_elsewhere(slow, make_client):
    """Before, hand-offs waited for as long as its client did not read."""
    transfer = slow.reserve(make_client(prompt(11, 200)).request(room=1), 0.0)
    assert slow.scheduler.incoming.grants() == (transfer,)
    assert slow.paused.state is RequestState.WAITING
    slow.check()


def test_a_paused_sequence_keeps_its_blocks_where_they_are_not_enough(slow, make_client):
    slow.add(make_client(prompt(27, 200), max_tokens=1))
    transfer = slow.reserve(make_client(prompt(27, 300)).request(room=1), 0.0)
    slow.step()
    assert slow.scheduler.incoming.grants() == ()
    assert slow.paused.state is RequestState.RUNNING
    assert transfer.fresh == 0


def test_a_paused_sequence_keeps_its_blocks_while_the_step_in_flight_writes_to_them(slow, make_client):
    slow.scheduler.pause(slow.paused.id, 1, False)
    slow.begin()
    slow.scheduler.pause(slow.paused.id, 1, True)
    transfer = slow.reserve(make_client(prompt(11, 200)).request(room=1), 0.0)
    assert slow.scheduler.incoming.grants() == ()
    slow.end()
    assert slow.scheduler.incoming.grants() == (transfer,)


def test_a_paused_sequence_gives_its_slot_to_one_who_waits(make_worker, make_client):
    worker = make_worker(max_running=2)
    paused, eager = worker.add(make_client(prompt(7), max_tokens=8)), make_client(prompt(7, 200), max_tokens=1)
    worker.add(make_client(prompt(7, 100), max_tokens=20))
    worker.step()
    worker.scheduler.pause(paused.id, 1, True)
    worker.add(eager)
    worker.step()
    assert eager.complete


def test_blocks_that_others_share_are_none_that_a_paused_sequence_could_give(make_worker, make_client):
    worker = make_worker(num_blocks=16, growth_tokens=0)
    paused = worker.add(make_client(prompt(11), max_tokens=8))
    worker.step()
    worker.add(make_client(prompt(11), max_tokens=20))
    worker.step()
    worker.scheduler.pause(paused.id, 1, True)
    assert worker.scheduler.load().paused_blocks == len(paused.blocks) - 2


def test_a_paused_sequence_that_migrates_keeps_its_blocks_from_those_who_wait(make_worker, make_client):
    worker = make_worker(num_blocks=6, growth_tokens=0, chunk_tokens=32)
    paused = worker.add(make_client(prompt(11), max_tokens=8))
    worker.step()
    worker.scheduler.pause(paused.id, 1, True)
    worker.migrate(paused, 3)
    worker.add(make_client(prompt(14, 200), max_tokens=1))
    assert worker.scheduler.load().paused_blocks == 0
    assert worker.step() is None
    assert paused.state is RequestState.RUNNING


def test_the_last_in_precedence_gives_way_itself(make_worker, make_client):
    """The others are in the step already; what it holds is of use to them next."""
    worker = make_worker(num_blocks=5, growth_tokens=0)
    first, last = (worker.add(make_client(prompt(n, 50 * n), max_tokens=10)) for n in (9, 7))
    worker.step()
    worker.step()
    assert (first.computed, last.computed, worker.pool.available) == (10, 8, 0)
    worker.begin()
    assert (first.state, last.state) == (RequestState.RUNNING, RequestState.WAITING)
    assert worker.pool.available == 2
