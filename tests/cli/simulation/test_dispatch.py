"""Which requests start, and where."""

import pytest
from known_signals import spec
from simulated_service import profile

from legato_cli.simulation.dispatch import Dispatcher
from legato_cli.simulation.request import Answers, SimulatedRequest
from legato_cli.simulation.simulated_pod import WorkerKind
from legato_cli.simulation.simulated_worker import SimulatedWorker
from legato_cli.simulation.workload import Arrival

KIND = WorkerKind(profile().step, 64_000, 512, 16, 0.1, 4, 512, 30.0)
UNIFIED = {"scaling": {"prefill": {"min": 0, "max": 0}}}


def _worker(pool, number=0, created=-100.0):
    return SimulatedWorker(f"{pool}-{number}", pool, number, KIND, created)


def _dispatcher(*workers, **parts):
    return Dispatcher(spec(**parts), workers, Answers(), 512)


def _send(dispatcher, *lengths, blocks=(), now=1.0):
    requests = [SimulatedRequest(i, Arrival(now, tokens, 10, blocks), tokens) for i, tokens in enumerate(lengths)]
    for request in requests:
        dispatcher.expect(request, now)
        dispatcher.hold(request)
    dispatcher.dispatch(now)
    return requests


def test_prompts_go_to_the_shortest_queue():
    workers = [_worker("prefill", 0), _worker("prefill", 1), _worker("decode")]
    _send(_dispatcher(*workers), 1000, 600, 300)
    assert [worker.backlog for worker in workers] == [1000, 900, 0]


def test_a_known_prefix_draws_a_prompt_to_its_worker():
    workers = [_worker("prefill", 0), _worker("prefill", 1), _worker("decode")]
    workers[1].prefixes.add((1, 2))
    _send(_dispatcher(*workers), 2000, blocks=(1, 2))
    assert [worker.backlog for worker in workers] == [0, 2000 - 1024, 0]


def test_sequences_spread_over_decode_workers():
    workers = [_worker("prefill"), _worker("decode", 1), _worker("decode", 2)]
    _send(_dispatcher(*workers), 1000, 1000, 1000, 1000)
    assert [worker.in_flight for worker in workers[1:]] == [2, 2]


def test_no_more_is_queued_than_two_seconds_and_the_rest_is_held():
    """8,376 tokens a second: 16,752."""
    workers = [prefill := _worker("prefill"), _worker("decode", 1), _worker("decode", 2)]
    dispatcher = _dispatcher(*workers, routing={"whenPrefillBusy": "Wait"})
    _send(dispatcher, *([4000] * 6))
    assert (prefill.backlog, len(dispatcher.held), dispatcher.held_tokens) == (16_000, 2, 8000)
    assert dispatcher.obstacle == "prefill"


LATE = (4000, 3900, 4000)  # 4,000 tokens take 0.48 s on the prefill worker


@pytest.mark.parametrize(
    ("ttft", "tpot", "sent", "prefill", "decode", "held"),
    [
        # The second prompt would be in time, but the third one behind it would not.
        pytest.param("1s", "50ms", [LATE], 8000, 3900, 0, id="helps with prompts that would be late"),
        pytest.param("1s", "50ms", [(16_000, 4000)], 16_000, 4000, 0, id="helps where there is no room"),
        # Alongside one row in steps of 10.1 ms, it has half of its time for them, or four fifths.
        pytest.param("500ms", "20ms", [(4000, 4000)], 8000, 0, 0, id="is slowed by what it decodes"),
        pytest.param("500ms", "50ms", [(4000, 4000)], 4000, 4000, 0, id="is slowed less by longer steps"),
        # Alongside a row it has a tenth of its time: 4,000 tokens take 4.8 s there, and 2.4 s on the prefill worker.
        pytest.param("1s", "11.2ms", [(16_000, 4000)], 16_000, 0, 1, id="is sent nothing that it would have later"),
        # The prefill worker has no room for it and would have it in time, and nobody is behind it.
        pytest.param("2500ms", "50ms", [(16_000, 4000)], 16_000, 0, 1, id="is not sent the last one"),
        pytest.param("1s", "50ms", [(4000,), (4000,)], 8000, 0, 0, id="is not needed in time"),
        pytest.param("1s", "50ms", [(4000,), (4000,), (4000,)], 8000, 4000, 0, id="is needed by a third prompt"),
        # A step of one row takes 10.1 ms.
        pytest.param("1s", "10ms", [(4000,) * 6], 16_000, 0, 2, id="has steps that leave no time"),
        # Two seconds of four fifths of a decode worker's time are 13,000 tokens.
        pytest.param("1s", "50ms", [(4000,) * 9], 16_000, 12_000, 2, id="is sent a bounded number of tokens"),
        pytest.param("1s", "50ms", [(63, 64)], 64, 63, 0, id="computes short prompts itself"),
    ],
)
def test_when_a_decode_worker_helps(ttft, tpot, sent, prefill, decode, held):
    workers = [_worker("prefill"), _worker("decode")]
    dispatcher = _dispatcher(*workers, slo={"ttft": ttft, "tpot": tpot})
    for lengths in sent:
        _send(dispatcher, *lengths)
    assert [worker.backlog for worker in workers] == [prefill, decode]
    assert len(dispatcher.held) == held
    assert not held or dispatcher.obstacle == "prefill"


def test_prompts_wait_where_one_prefill_worker_would_be_in_time():
    """The one that knows most of the prompt would not."""
    workers = [_worker("prefill", 0), _worker("prefill", 1), decode := _worker("decode")]
    dispatcher = _dispatcher(*workers, slo={"ttft": "1s", "tpot": "50ms"}, routing={"weights": {"prefixCache": 9}})
    _send(dispatcher, 12_000, 4000)
    workers[0].prefixes.add((1, 2, 3, 4, 5, 6))
    _send(dispatcher, 3500, blocks=(1, 2, 3, 4, 5, 6))
    assert (workers[1].backlog, decode.backlog) == (4000, 0)


def test_an_idle_prefill_worker_needs_no_help():
    """The prompt takes longer than the objective, and less on the decode worker, which knows its beginning. Another
    prefill worker may be busy."""
    workers = [_worker("prefill", 0), _worker("prefill", 1), decode := _worker("decode")]
    dispatcher = _dispatcher(*workers, slo={"ttft": "500ms", "tpot": "500ms"})
    _send(dispatcher, 4000)
    decode.prefixes.add((1, 2))
    _send(dispatcher, 8000, blocks=(1, 2))
    assert [worker.backlog for worker in workers] == [4000, 8000, 0]


@pytest.mark.parametrize(("first", "backlogs"), [(None, (4000, 4000)), (0.9, (8000, 0))])
def test_time_in_the_gateway_counts_until_the_first_token(first, backlogs):
    """0.96 s are too long for what came half a second ago, unless its user has the first token."""
    workers = [prefill := _worker("prefill"), decode := _worker("decode")]
    dispatcher = _dispatcher(*workers, slo={"ttft": "1s", "tpot": "50ms"})
    _send(dispatcher, 4000)
    request = SimulatedRequest(9, Arrival(0.5, 4000, 10, ()), 4000)
    request.first = first
    dispatcher.expect(request, 1.0)
    dispatcher.hold(request)
    dispatcher.dispatch(1.0)
    assert (prefill.backlog, decode.backlog) == backlogs


def test_what_is_computed_of_a_prompt_waits_no_more():
    """Two seconds are 16,732 tokens, so the second prompt has room when 11,268 of the first one are computed."""
    worker = _worker("prefill")
    dispatcher = _dispatcher(worker, _worker("decode"), routing={"whenPrefillBusy": "Wait"})
    _send(dispatcher, 16_000, 12_000)
    assert len(dispatcher.held) == 1
    dispatcher.dispatch(1.0 + (worker.ends - 1.0) * 0.75)
    assert not dispatcher.held


def test_a_prompt_waits_for_room_to_decode_and_nothing_overtakes_it():
    """64,000 tokens: 20,000, 20,000 and 32 + 8 for each fit beside 20,000, but no third one with what is expected."""
    dispatcher = _dispatcher(*(_worker("prefill", i) for i in range(9)), _worker("decode"))
    _send(dispatcher, 20_000, 20_000, 30_000, 100)
    assert [request.arrival.prompt for request in dispatcher.held] == [30_000, 100]
    assert dispatcher.obstacle == "decode_room"


def test_room_is_left_for_the_answers_that_are_expected():
    """Four times 15,970 tokens and half a block fit into 64,000, but 32 tokens of output for each do not."""
    dispatcher = _dispatcher(*(_worker("prefill", i) for i in range(9)), _worker("decode"))
    _send(dispatcher, *([15_970] * 4))
    assert len(dispatcher.held) == 1


def test_a_worker_is_sent_more_than_it_has_slots_but_no_more_than_may_wait():
    """4 slots, and 256 that wait for one."""
    dispatcher = _dispatcher(*(_worker("prefill", i) for i in range(9)), _worker("decode"))
    _send(dispatcher, *([100] * 262))
    assert (len(dispatcher.held), dispatcher.obstacle) == (2, "decode_room")


@pytest.mark.parametrize("missing", ["decode", "prefill"])
def test_without_a_worker_of_a_pool_requests_wait_for_one(missing):
    """With `Wait`, decode workers do not prefill."""
    there = "prefill" if missing == "decode" else "decode"
    workers = [_worker(there), _worker(missing, 1, created=-28.8)]
    bounds = {"prefill": {"min": 1, "max": 4}}
    dispatcher = _dispatcher(*workers, routing={"whenPrefillUnavailable": "Wait"}, scaling=bounds)
    _send(dispatcher, 1000)
    assert (len(dispatcher.held), dispatcher.obstacle) == (1, "no_worker")
    dispatcher.dispatch(1.5)
    assert not dispatcher.held


def test_decode_workers_prefill_where_nobody_else_does():
    dispatcher = _dispatcher(decode := _worker("decode"), _worker("prefill", 1, created=0.0))
    _send(dispatcher, 1000)
    assert decode.backlog == 1000


def test_unified_workers_compute_what_they_decode():
    workers = [_worker("decode", 0), _worker("decode", 1)]
    _send(_dispatcher(*workers, **UNIFIED), 1000, 500)
    assert [(worker.backlog, worker.in_flight) for worker in workers] == [(1000, 1), (500, 1)]


def test_held_requests_leave_at_their_deadline():
    dispatcher = _dispatcher(gateway={"defaultDeadline": "30s"})
    _send(dispatcher, 1000, 500)
    assert dispatcher.expire(31.0) == []
    assert len(dispatcher.expire(31.1)) == 2
    assert dispatcher.held_tokens == 0


def test_a_full_gateway_refuses():
    dispatcher = _dispatcher()
    requests = _send(dispatcher, *([1] * 2048))
    assert dispatcher.refuses(requests[0])
