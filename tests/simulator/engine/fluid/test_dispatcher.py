"""Requests that start, and where."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_signals import spec
from simulated_service import KIND

from legato_engine.scheduler.queueing.growth_forecast import Growth, GrowthForecast
from legato_simulator.engine.fluid.dispatcher import Dispatcher
from legato_simulator.engine.fluid.simulated_worker import SimulatedWorker
from legato_simulator.engine.request import Answers, Rows, SimulatedRequest
from legato_simulator.workload.workload import Arrival

WAIT = {"routing": {"whenPrefillBusy": "Wait"}}
UNIFIED = {"scaling": {"prefill": {"min": 0, "max": 0}}}
LATE = (4000, 3900, 4000)  # 4,000 tokens take 0.48 s on the prefill worker


def _slo(ttft, tpot):
    return {"slo": {"ttft": ttft, "tpot": tpot}}


def _worker(pool, number=0, created=-100.0):
    return SimulatedWorker(f"{pool}-{number}", pool, KIND, created)


def _workers(pools):
    return [_worker({"p": "prefill", "d": "decode"}[letter], number) for number, letter in enumerate(pools)]


def _dispatcher(*workers, **parts):
    return Dispatcher(spec(**parts), workers, Answers(), 512)


def _send(dispatcher, *lengths, blocks=(), now=1.0):
    requests = [SimulatedRequest(i, Arrival(now, tokens, 10, blocks), tokens) for i, tokens in enumerate(lengths)]
    for request in requests:
        dispatcher.expect(request, now)
        dispatcher.enqueue(request)
    dispatcher.dispatch(now)
    return requests


@pytest.mark.parametrize(("cached", "kv_tokens"), [(0, 2024), (50, 3324)])
def test_rows_that_end_first_make_room_for_others(cached, kv_tokens):
    """Answers have 1,000 tokens. When the first row ends, all three need 300 more; without ends 1,600."""
    answers = Answers()
    for _ in range(20):
        answers.add(1000)
    for room, fits in ((kv_tokens, True), (kv_tokens - 1, False)):
        worker = SimulatedWorker("d", "decode", replace(KIND, kv_tokens=room, block_size=16), -100.0)
        for made in (900, 500):
            worker.rows.add(SimulatedRequest(made, Arrival(0.0, 100, 1000), 100.0 + made, made=made))
        for _ in range(10):
            worker.reserve(earlier := SimulatedRequest(0, Arrival(0.0, 100, 10), 100.0, uncached=100 - cached))
            worker.release(earlier)
        assert worker.fits(100, answers) is fits


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=12), st.integers(0, 3))
def test_growth_is_what_the_scheduler_expects_in_blocks(made, entering):
    answers, rows = Answers(), Rows()
    for _ in range(20):
        answers.add(50)
    for number, tokens in enumerate(made):
        rows.add(SimulatedRequest(number, Arrival(0.0, 8, 100, ()), 8.0, made=tokens))
    sequences = [Growth(50 - each, 50 - each, each) if each < 50 else Growth(32, 32, -32) for each in made]
    sequences += [Growth(50, 50)] * entering
    fluid, here = rows.growth(answers, entering), GrowthForecast(sequences).peak()
    assert -len(sequences) <= here - fluid <= len(sequences) + sum(each.blocks for each in sequences) / 8


def _check_queued(dispatcher, lengths, obstacle):
    assert [request.arrival.prompt for request in dispatcher.queue] == lengths
    assert dispatcher.queued_tokens == sum(lengths)
    assert not lengths or dispatcher.obstacle == obstacle


@pytest.mark.parametrize(
    ("pools", "parts", "sent", "backlogs", "queued"),
    [
        pytest.param("ppd", {}, [(1000, 600, 300)], [1000, 900, 0], [], id="goes to the shortest queue"),
        # 8,376 tokens a second: 16,752.
        pytest.param("pdd", WAIT, [(4000,) * 6], [16_000, 0, 0], [4000] * 2, id="queues at most two seconds"),
        pytest.param("dd", UNIFIED, [(1000, 500)], [1000, 500], [], id="unified workers compute what they decode"),
        # The second prompt would be in time, but the third one after it would not.
        pytest.param("pd", _slo("1s", "50ms"), [LATE], [8000, 3900], [], id="helps with prompts that would be late"),
        pytest.param("pd", _slo("1s", "50ms"), [(16_000, 4000)], [16_000, 4000], [], id="helps where there is no room"),
        # Alongside one row in steps of 10.1 ms, it has 44 or 78 % of its time for them.
        pytest.param("pd", _slo("500ms", "20ms"), [(4000, 4000)], [8000, 0], [], id="is slowed by what it decodes"),
        pytest.param("pd", _slo("500ms", "50ms"), [(4000,) * 2], [4000] * 2, [], id="is slowed less by longer steps"),
        # Alongside a row it has 14 % of its time: 4,000 tokens take 3.5 s there, and 2.4 s on the prefill worker.
        pytest.param("pd", _slo("1s", "13ms"), [(16_000, 4000)], [16_000, 0], [4000], id="would have it later"),
        # The prefill worker has no room for it and would have it in time, and nobody waits after it.
        pytest.param("pd", _slo("2500ms", "50ms"), [(16_000, 4000)], [16_000, 0], [4000], id="does not get the last"),
        pytest.param("pd", _slo("1s", "50ms"), [(4000,)] * 2, [8000, 0], [], id="is not needed in time"),
        pytest.param("pd", _slo("1s", "50ms"), [(4000,)] * 3, [8000, 4000], [], id="is needed by a third prompt"),
        # A step of one row takes 10.1 ms.
        pytest.param(
            "pd", _slo("1s", "10ms"), [(4000,) * 6], [16_000, 0], [4000] * 2, id="has steps that are too long"
        ),
        # Two seconds of 78 % of a decode worker's time are 13,000 tokens.
        pytest.param("pd", _slo("1s", "50ms"), [(4000,) * 9], [16_000, 12_000], [4000] * 2, id="queues bounded tokens"),
        pytest.param("pd", _slo("1s", "50ms"), [(63, 64)], [64, 63], [], id="computes short prompts itself"),
    ],
)
def test_prompts_go_to_prefill_workers_and_where_a_decode_worker_helps(pools, parts, sent, backlogs, queued):
    dispatcher = _dispatcher(*(workers := _workers(pools)), **parts)
    for lengths in sent:
        _send(dispatcher, *lengths)
    assert [worker.backlog for worker in workers] == backlogs
    _check_queued(dispatcher, queued, "prefill")


KNOWN = {
    "draws a prompt to its worker": (1, (1, 2), {}, (), 2000, [0, 2000 - 1024, 0]),
    # The worker that knows most of the prompt would be late, the other one not.
    "does not make a decode worker help where another prefill worker would be in time": (
        0, (1, 2, 3, 4, 5, 6), {**_slo("1s", "50ms"), "routing": {"weights": {"prefixCache": 9}}},
        (12_000, 4000), 3500, [12_000 + 3500 - 3072, 4000, 0]),
    # It takes longer than the objective, and less on the decode worker. Another prefill worker may be busy.
    "does not make a decode worker help an idle prefill worker": (
        2, (1, 2), _slo("500ms", "500ms"), (4000,), 8000, [4000, 8000, 0]),
}  # fmt: skip


@pytest.mark.parametrize("case", KNOWN)
def test_a_known_prefix(case):
    knowing, blocks, parts, before, tokens, backlogs = KNOWN[case]
    dispatcher = _dispatcher(*(workers := _workers("ppd")), **parts)
    _send(dispatcher, *before)
    workers[knowing].prefixes.add(blocks)
    _send(dispatcher, tokens, blocks=blocks)
    assert [worker.backlog for worker in workers] == backlogs


@pytest.mark.parametrize(("first", "backlogs"), [(None, (4000, 4000)), (0.9, (8000, 0))])
def test_time_in_the_gateway_counts_until_the_first_token(first, backlogs):
    """0.96 s are too long for what came half a second ago, unless its user has the first token."""
    prefill, decode = workers = _workers("pd")
    dispatcher = _dispatcher(*workers, **_slo("1s", "50ms"))
    _send(dispatcher, 4000)
    request = SimulatedRequest(9, Arrival(0.5, 4000, 10, ()), 4000)
    request.first = first
    dispatcher.expect(request, 1.0)
    dispatcher.enqueue(request)
    dispatcher.dispatch(1.0)
    assert (prefill.backlog, decode.backlog) == backlogs


@pytest.mark.parametrize(
    ("lengths", "queued"),
    [
        # 64,000 tokens: two of 20,000 with 32 + 8 for each fit, but not a third one with its expected output.
        pytest.param([20_000, 20_000, 30_000, 100], [30_000, 100], id="and nothing overtakes it"),
        # Four times 15,970 tokens and half a block fit into 64,000, but 32 tokens of output for each do not.
        pytest.param([15_970] * 4, [15_970], id="for the answers that are expected"),
        # 4 slots, and 256 that wait for one.
        pytest.param([100] * 262, [100, 100], id="or for a place among those that wait for a slot"),
    ],
)
def test_a_prompt_waits_for_room_to_decode(lengths, queued):
    dispatcher = _dispatcher(*_workers("p" * 9 + "d"))
    _send(dispatcher, *lengths)
    _check_queued(dispatcher, queued, "decode_room")


@pytest.mark.parametrize("missing", ["decode", "prefill"])
def test_without_a_worker_of_a_pool_requests_wait_for_one(missing):
    workers = [_worker("prefill" if missing == "decode" else "decode"), _worker(missing, 1, created=-28.8)]
    bounds = {"prefill": {"min": 1, "max": 4}}
    dispatcher = _dispatcher(*workers, routing={"whenPrefillUnavailable": "Wait"}, scaling=bounds)
    _send(dispatcher, 1000)
    _check_queued(dispatcher, [1000], "no_worker")
    dispatcher.dispatch(1.5)
    assert not dispatcher.queue


def test_a_full_gateway_refuses():
    dispatcher = _dispatcher()
    assert dispatcher.refuses(_send(dispatcher, *([1] * 2048))[0])
