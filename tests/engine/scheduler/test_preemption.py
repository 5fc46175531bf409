"""Sequences that give way when blocks are short, and those that do not."""

import pytest
from scheduled_worker import Client, Worker, ask

from legato_engine.core.reporting.outbox import token_items
from legato_engine.scheduler.planning.planner import MOST_PREEMPTIONS
from legato_engine.scheduler.requests.request import RequestState
from legato_engine.scheduler.results import Emission


@pytest.fixture
def crowded():
    """Three sequences of two full blocks each on a worker of six, so that whoever computes next needs another's."""
    worker = Worker(num_blocks=6, growth_tokens=0, chunk_tokens=32)
    requests = worker.add_all(ask(7, 100 * i, max_tokens=12) for i in range(3))
    worker.steps(2)
    assert [request.computed for request in requests] == [8, 8, 8]
    assert worker.pool.available == 0
    return worker, requests


def waiting(requests):
    return [index for index, request in enumerate(requests) if request.state is RequestState.WAITING]


@pytest.mark.parametrize(
    ("preemptions", "victim"),
    [((0, 0, 0), 2), ((0, 0, MOST_PREEMPTIONS - 1), 2), ((0, 0, MOST_PREEMPTIONS), 1), ((MOST_PREEMPTIONS,) * 3, 2)],
    ids=["the newest", "even if preempted once", "not again without progress", "somebody, if all are protected"],
)
def test_the_newest_that_is_not_protected_gives_way(crowded, preemptions, victim):
    worker, requests = crowded
    for request, count in zip(requests, preemptions, strict=True):
        request.preemptions = count
    worker.begin()
    assert waiting(requests) == [victim]
    worker.end()
    assert requests[2].preemptions == (0 if victim == 1 else preemptions[2] + 1)
    worker.run(*worker.clients.values())
    assert worker.load.preemptions == sum(request.preempted for request in requests) > 1


@pytest.mark.parametrize(("paused", "victim"), [([0], 0), ([1], 1), ([0, 1], 1)])
def test_paused_sequences_give_way_before_newer_ones_and_of_two_the_newer(crowded, paused, victim):
    worker, requests = crowded
    for index in paused:
        worker.pause(requests[index])
    worker.begin()
    assert waiting(requests) == [victim]
    for index in paused:
        worker.resume(requests[index])
    worker.end()
    worker.run(*worker.clients.values())


def test_a_sequence_whose_blocks_a_peer_reads_does_not_give_way(crowded):
    worker, requests = crowded
    worker.pause(requests[2])
    worker.migrate(requests[2], 3)
    worker.begin()
    assert waiting(requests) == [1]


def test_preemptions_count_until_the_sequence_is_further_than_it_ever_was(crowded):
    worker, requests = crowded
    worker.step()
    while requests[2].computed < 8:
        assert requests[2].preemptions == 1
        worker.step()
    while requests[2].computed < 9:
        worker.step()
    assert requests[2].preemptions == 0
    (item,) = token_items(Emission(requests[2], 0, 0, ()), "r")
    assert item.preemptions == 1


@pytest.mark.parametrize("preemptions", [0, MOST_PREEMPTIONS])
def test_blocks_of_a_preempted_sequence_are_not_given_to_one_that_waits(preemptions):
    """In the same step: the running ones took them because they need them, and a newcomer would give way next."""
    worker = Worker(num_blocks=8, growth_tokens=0, chunk_tokens=32)
    requests = [worker.add(ask(n, 50 * i, max_tokens=9)) for i, n in enumerate((7, 7, 15))]
    worker.steps(2)
    for request in requests:
        request.preemptions = preemptions
    worker.pause(requests[2])  # so that it is not first in the queue
    newcomer = worker.add(Client((300,), max_tokens=1))
    worker.begin()
    assert waiting([*requests, newcomer]) == [2, 3]
    assert worker.pool.available == 2
    worker.end()
    worker.run()
    assert newcomer.finish == "length"


def test_blocks_of_a_grant_that_was_undone_may_be_given_to_one_that_waits():
    """Nobody had to give way: a sequence that runs takes one of the two blocks, a newcomer the other."""
    worker = Worker(num_blocks=4, growth_tokens=0)
    running = worker.add(ask(7, max_tokens=9))
    worker.step()
    worker.reserve(ask(3, 50))
    worker.step()
    assert worker.pool.available == 0
    newcomer = worker.add(Client((300,), max_tokens=1), priority=9)
    worker.begin()
    assert len(running.blocks) == 3
    assert newcomer.state is RequestState.RUNNING


def test_a_sequence_preempted_twice_keeps_its_blocks_when_only_it_runs():
    """The blocks that it lacks come from elsewhere: here a peer writes to them."""
    worker = Worker(num_blocks=4, growth_tokens=0)
    request = worker.add(ask(7, max_tokens=9))
    worker.step()
    worker.incoming.on_written(worker.granted(ask(3, 50)))
    worker.step()
    request.preemptions = MOST_PREEMPTIONS
    assert worker.step() is None
    assert (request.state, request.computed) == (RequestState.RUNNING, 8)


def test_a_preempted_sequence_has_nothing_and_goes_before_newcomers(crowded):
    worker, (_, _, preempted) = crowded
    worker.step()
    assert (preempted.blocks, preempted.computed, preempted.stored, preempted.writable) == ([], 0, 0, 0)
    worker.add(ask(3, 300), priority=9)
    assert next(iter(worker.scheduler._queue)) is preempted


@pytest.fixture
def slow():
    """A worker of 8 blocks with a paused sequence, which holds 4 of them, and one that runs and holds 2."""
    worker = Worker(num_blocks=8, growth_tokens=0)
    worker.paused = worker.add(ask(11, max_tokens=8))
    worker.running = worker.add(ask(4, 100, max_tokens=20))
    worker.steps(4)
    worker.pause(worker.paused)
    assert (len(worker.paused.blocks), len(worker.running.blocks), worker.load.paused_blocks) == (4, 2, 4)
    return worker


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_paused_sequence_gives_way_to_one_that_waits_and_to_one_from_elsewhere(slow, elsewhere):
    """It may take long until a running one gives its blocks back, or its client reads."""
    if elsewhere:
        slow.granted(ask(11, 200))
    else:
        slow.add(eager := ask(15, 200, max_tokens=1))
        slow.step()
        assert eager.complete
    assert waiting([slow.paused, slow.running]) == [0]
    assert (slow.load.paused_blocks, slow.load.paused) == (0, 1)
    slow.check()


def test_a_paused_sequence_keeps_its_blocks_where_they_are_not_enough(slow):
    slow.add(ask(27, 200, max_tokens=1))
    transfer = slow.reserve(ask(27, 300))
    slow.step()
    assert (slow.incoming.grants(), slow.paused.state, transfer.fresh) == ((), RequestState.RUNNING, 0)


def test_a_paused_sequence_keeps_its_blocks_while_the_step_in_flight_writes_to_them(slow):
    slow.resume(slow.paused)
    slow.begin()
    slow.pause(slow.paused)
    transfer = slow.reserve(ask(11, 200))
    assert slow.incoming.grants() == ()
    slow.end()
    assert slow.incoming.grants() == (transfer,)


def test_a_paused_sequence_gives_its_slot_to_one_that_waits():
    worker = Worker(max_running=2)
    paused, _ = worker.add_all((ask(7, max_tokens=8), ask(7, 100, max_tokens=20)))
    worker.step()
    worker.pause(paused)
    worker.add(eager := ask(7, 200, max_tokens=1))
    worker.step()
    assert eager.complete


def test_a_paused_sequence_cannot_give_blocks_that_others_share():
    worker = Worker(num_blocks=16, growth_tokens=0)
    paused = worker.add(ask(11, max_tokens=8))
    worker.step()
    worker.add(ask(11, max_tokens=20))
    worker.step()
    worker.pause(paused)
    assert worker.load.paused_blocks == len(paused.blocks) - 2


def test_the_last_in_precedence_gives_way_itself():
    """The others are in the step already; what it holds is of use to them next."""
    worker = Worker(num_blocks=5, growth_tokens=0)
    first, last = worker.add_all(ask(n, 50 * n, max_tokens=10) for n in (9, 7))
    worker.steps(2)
    assert (first.computed, last.computed, worker.pool.available) == (10, 8, 0)
    worker.begin()
    assert waiting([first, last]) == [1]
    assert worker.pool.available == 2
