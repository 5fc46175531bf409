"""A row for which nothing could be sampled: only the blocks that nobody else computed cannot be found any longer."""

from scheduled_worker import Client, Worker, ask, outgoing_of, prompt

from legato_engine.scheduler.requests.request import RequestState


def test_blocks_of_a_faulty_request_are_not_found_again():
    worker = Worker()
    request = worker.add(ask(16))
    assert worker.break_down().faulted == [(request, "no numbers")]
    assert worker.counts.free == worker.pool.size


def test_a_peer_that_is_sent_faulty_blocks_keeps_them_from_nobody_else():
    worker = Worker(role="prefill", chunk_tokens=8)
    request = worker.add(ask(16), room=1)
    worker.grant(request)
    worker.step()
    assert len(worker.pool.cache) == 2
    worker.break_down()
    assert (request.state, len(worker.pool.cache), worker.counts.used) == (RequestState.ENDED, 0, 4)
    worker.outgoing.abort(outgoing_of(request))
    worker.check()
    assert worker.counts.free == worker.pool.size


def test_a_faulty_request_takes_nothing_of_the_cache_that_is_not_its_own():
    worker = Worker()
    worker.add_all((ask(18), ask(18, 100)))
    worker.run()
    kept = set(worker.pool.cache)
    worker.add(Client((*prompt(12), *prompt(8, 50))))
    worker.break_down()
    assert set(worker.pool.cache) == kept


def test_requests_that_fault_together_take_what_only_they_shared():
    """Choices of one request: the first to fault leaves its siblings theirs, the last one leaves nothing."""
    worker = Worker()
    worker.add(ask(9, max_tokens=8, choices=(0, 1)))
    worker.step()
    for left in (2, 0):
        assert len(worker.pool.cache) == 2
        assert (len(worker.break_down().faulted), len(worker.pool.cache)) == (1, left)
    worker.check()
    assert worker.counts.free == worker.pool.size
