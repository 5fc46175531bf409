"""A row of which the model makes no numbers: its blocks are found by nobody any more, whoever still holds them."""

import pytest

from legato_engine.request import RequestState


def prompt(length, start=0):
    return tuple(range(start, start + length))


def test_blocks_of_a_faulty_request_are_not_found_again(make_worker, make_client):
    worker = make_worker()
    request = worker.add(make_client(prompt(16)))
    result = worker.break_down()
    assert result.faulty == [(request, "no numbers")]
    assert worker.pool.counts().free == worker.pool.size


def test_a_peer_that_is_sent_faulty_blocks_keeps_them_from_nobody_else(make_worker, make_client):
    worker = make_worker(role="prefill", chunk_tokens=8)
    request = worker.add(make_client(prompt(16)), room=1)
    worker.scheduler.outgoing.grant(request)
    worker.step()
    assert len(worker.pool.cache) == 2
    worker.break_down()
    assert (request.state, len(worker.pool.cache), worker.pool.counts().used) == (RequestState.ENDED, 0, 4)
    worker.scheduler.outgoing.release(request)
    worker.check()
    assert worker.pool.counts().free == worker.pool.size


@pytest.mark.parametrize("length", [9, 13, 16])
def test_who_shares_blocks_with_a_faulty_request_goes_on_and_stores_nothing_after_them(
    make_worker, make_client, length
):
    """The blocks are in use, so they cannot be free; a third request computes the prefix anew, and that is findable."""
    worker = make_worker()
    first, third = make_client(prompt(length), max_tokens=14), make_client(prompt(length), seed=3)
    worker.add(first)
    worker.step()
    assert len(worker.pool.cache) == length // 4
    worker.add(make_client((*prompt(length), 99, 98)))
    worker.break_down()
    assert len(worker.pool.cache) == 0
    worker.step()
    worker.add(third)
    worker.step()
    assert worker.scheduler.requests(third.id)[0].cached_tokens == 0
    worker.run()
    assert first.complete
    assert third.complete
    found = worker.pool.cache.match(worker.scheduler._tables.hashes(third.request(), length // 4))
    assert len(found) == length // 4
    assert worker.pool.counts().cached == (length + len(third.got[0]) - 1) // 4
    worker.check()
