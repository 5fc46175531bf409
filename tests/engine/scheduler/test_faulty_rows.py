"""A row for which nothing could be sampled: what it alone computed is found by nobody any more, and nothing else is
lost."""

import pytest

from legato_engine.scheduler.request import RequestState


def prompt(length, start=0):
    return tuple(range(start, start + length))


def test_blocks_of_a_faulty_request_are_not_found_again(make_worker, make_client):
    worker = make_worker()
    request = worker.add(make_client(prompt(16)))
    result = worker.break_down()
    assert result.faulted == [(request, "no numbers")]
    assert worker.pool.counts().free == worker.pool.size


def test_a_peer_that_is_sent_faulty_blocks_keeps_them_from_nobody_else(make_worker, make_client):
    worker = make_worker(role="prefill", chunk_tokens=8)
    request = worker.add(make_client(prompt(16)), room=1)
    worker.grant(request)
    worker.step()
    assert len(worker.pool.cache) == 2
    worker.break_down()
    assert (request.state, len(worker.pool.cache), worker.pool.counts().used) == (RequestState.ENDED, 0, 4)
    worker.abort(request)
    worker.check()
    assert worker.pool.counts().free == worker.pool.size


@pytest.mark.parametrize("length", [9, 13, 16])
def test_who_shares_blocks_with_a_faulty_request_goes_on_and_its_blocks_stay_findable(make_worker, make_client, length):
    worker = make_worker()
    first, third = make_client(prompt(length), max_tokens=14), make_client((*prompt(length), 7), seed=3)
    worker.add(first)
    worker.step()
    found = set(worker.pool.cache)
    assert len(found) == length // 4
    worker.add(make_client((*prompt(length), 99, 98, 97, 96)))
    worker.break_down()
    assert found <= set(worker.pool.cache)
    worker.add(third)
    worker.step()
    assert worker.scheduler.requests(third.id)[0].cached_tokens == length // 4 * 4
    worker.run()
    assert first.complete
    assert third.complete


def test_a_faulty_request_takes_nothing_of_the_cache_that_is_not_its_own(make_worker, make_client):
    worker = make_worker()
    for start in (0, 100):
        worker.add(make_client(prompt(18, start)))
    worker.run()
    kept = set(worker.pool.cache)
    worker.add(make_client((*prompt(12), *prompt(8, 50))))
    worker.break_down()
    assert set(worker.pool.cache) == kept


def test_who_faults_together_takes_what_only_they_shared(make_worker, make_client):
    """Choices of one request: the first to fault leaves its siblings theirs, the last one leaves nothing."""
    worker = make_worker()
    worker.add(make_client(prompt(9), max_tokens=8, choices=(0, 1)))
    worker.step()
    assert len(worker.pool.cache) == 2
    assert len(worker.break_down().faulted) == 1
    assert len(worker.pool.cache) == 2
    assert len(worker.break_down().faulted) == 1
    assert len(worker.pool.cache) == 0
    worker.check()
    assert worker.pool.counts().free == worker.pool.size
