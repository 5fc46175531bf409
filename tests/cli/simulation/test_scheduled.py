"""The scheduler engine: real schedulers, admission and routing in virtual time."""

import dataclasses
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from known_signals import spec
from simulated_service import SteadyScaler, profile, steady, workload

from legato_cli.simulation.engine import RunSettings
from legato_cli.simulation.scaler import LegatoScaler
from legato_cli.simulation.scheduled import SchedulerEngine
from legato_cli.simulation.workload import Arrival

ONE = SteadyScaler((0.0, {"prefill": 1, "decode": 1}))


def _engine(arrivals, scaler=ONE, service=None, **given):
    given = {"profile": profile(), **given}
    return SchedulerEngine(RunSettings(service or spec(largest=50), workload(list(arrivals)), **given), scaler)


def _serve(*arrivals, **given):
    """The engine after its run, the result, and every request that ended."""
    made = _engine(arrivals, **given)
    ended = []
    made.tally.ended = lambda request, end=made.tally.ended: (ended.append(request), end(request))
    return made, made.run(), ended


def _check(made):
    """Nothing is left anywhere."""
    for worker in made.pods.all:
        worker.scheduler.check_integrity()
        assert worker.idle
        assert worker.scheduler.idle


def test_a_prompt_takes_its_chunks_and_an_answer_its_steps():
    """1,200 tokens are steps of 512, 512 and 176; each of the 10 later tokens takes a step of 10.1 ms."""
    made, result, (request,) = _serve(Arrival(3.0, 1200, 11))
    assert request.ttft == pytest.approx(3 * 0.01 + 0.12)
    assert request.tpot == pytest.approx(0.0101)
    assert (result.finished, result.attainment) == (1, 1.0)
    _check(made)


def test_the_last_blocks_of_a_prompt_take_time_to_arrive():
    """512 tokens travel while the other 88 are computed, which then follow, 10,000 a second."""
    _, _, (request,) = _serve(Arrival(3.0, 600, 2), handoff_rate=10_000)
    computed = 0.02 + 0.06
    assert request.ttft == pytest.approx(computed + (512 - 188) / 10_000 + 88 / 10_000)


def test_a_prefix_that_a_worker_holds_is_not_computed_again():
    first, again = Arrival(1.0, 2048, 1, (1, 2, 3, 4)), Arrival(5.0, 2560, 1, (1, 2, 3, 4, 5))
    _, _, ended = _serve(first, again)
    assert ended[1].uncached == 512
    assert ended[1].ttft == pytest.approx(0.01 + 0.0512)


def test_prompts_go_to_where_their_prefix_is_being_computed():
    """They come before any block of the first one is stored; else both workers would compute its 2,048 tokens."""
    burst = [Arrival(40.0 + 0.001 * i, 2560, 1, (1, 2, 3, 4, 5 + i)) for i in range(4)]
    two = SteadyScaler((0.0, {"prefill": 2, "decode": 1}))
    made, _, _ = _serve(Arrival(0.0, 10, 1), *burst, scaler=two, service=spec(routing={"whenPrefillBusy": "Wait"}))
    cached = [worker.blocks.counts().cached for worker in made.pods.of_pool("prefill")]
    assert sorted(cached) == [0, (2048 + 4 * 512) // 16]
    _check(made)


def test_prompts_that_begin_otherwise_share_nothing():
    """The second prompt begins otherwise, so nothing of it is known; its second id is of course another one."""
    _, _, ended = _serve(Arrival(1.0, 1024, 1, (1, 2)), Arrival(5.0, 1024, 1, (3, 4)))
    assert ended[1].uncached == 1024


def test_a_full_cache_holds_requests_and_then_serves_them_all():
    """Each needs 3,000 of 8,000 tokens, so some are preempted and others wait."""
    made, result, ended = _serve(*steady(1.0, tokens=1000, output=2000), profile=profile(kv_tokens=8000))
    assert result.finished == 10
    assert ended[-1].ttft > ended[0].ttft + 20
    _check(made)


def test_a_request_longer_than_the_model_allows_is_refused():
    _, result, _ = _serve(Arrival(1.0, 4000, 97), Arrival(1.0, 4000, 96))
    assert (result.refused, result.finished, result.attainment) == (1, 1, 0.5)


def test_requests_wait_no_longer_than_their_deadline():
    service = spec(gateway={"defaultDeadline": "15s"})
    made, result, _ = _serve(*steady(20.0, tokens=4000), Arrival(100.0, 10, 1), service=service)
    assert result.refused > 0
    assert result.finished + result.refused == result.offered
    assert result.ttft.p99 < 18
    _check(made)


def test_sequences_of_a_draining_worker_go_on_elsewhere():
    """So it is gone at the next look, although they decode for 30 s each, and nothing is computed again."""
    wishes = ((0.0, {"decode": 2, "prefill": 1}), (60.0, {"decode": 1}))
    arrivals = [*steady(58.0, each=2.0, output=3000, tokens=100), Arrival(100.0, 10, 1)]
    made, result, ended = _serve(*arrivals, scaler=SteadyScaler(*wishes))
    assert result.finished == result.offered == 30
    assert max(request.tpot for request in ended) < 0.015
    assert result.gpu_hours * 3600 == pytest.approx(3 * 62 + 2 * 38)
    _check(made)


def test_what_is_in_a_worker_at_its_drain_deadline_starts_again():
    wishes = ((0.0, {"decode": 2, "prefill": 1}), (60.0, {"decode": 1}))
    arrivals = [Arrival(50.0, 3000, 1000), Arrival(50.0, 3000, 1000), Arrival(200.0, 10, 1)]
    made, result, ended = _serve(
        *arrivals,
        scaler=SteadyScaler(*wishes),
        profile=profile(kv_tokens=4032, start=1.0, per_step=0.05),
        service=spec(drain={"deadline": "20s"}),
    )
    assert result.finished == 3
    assert max(request.done for request in ended if request.arrival.at == 50.0) > 115
    _check(made)


def test_decode_workers_prefill_where_no_other_worker_does():
    wishes = SteadyScaler((0.0, {"prefill": 0, "decode": 1}))
    service = spec(scaling={"prefill": {"min": 0, "max": 2}, "decode": {"min": 1, "max": 2}})
    made, result, _ = _serve(*steady(100.0, each=1.0), scaler=wishes, service=service)
    assert result.timeline[-1].ready == {"prefill": 0, "decode": 1}
    assert result.finished == 100
    _check(made)


def test_there_was_no_traffic_before_the_beginning():
    """So that what arrives in the first seconds is a rate over a whole window, not a burst."""
    seen = []
    scaler = SteadyScaler((0.0, {"prefill": 1, "decode": 1}))
    scaler.sizes = lambda now: (seen.append(now), {})[1]
    _engine([*steady(6.0, each=1.0)], scaler).run()
    assert seen[2].now == 4.0
    assert seen[2].signals.traffic.seconds >= 60
    assert sum(lengths.requests for lengths in seen[2].signals.traffic.arrivals) == 4


def test_what_is_computed_for_a_worker_that_is_gone_starts_again():
    """40 s for each prompt: at 80 s, the second one is half computed for the worker that is deleted then."""
    wishes = ((0.0, {"decode": 2, "prefill": 1}), (60.0, {"decode": 1}))
    made, result, ended = _serve(
        Arrival(40.0, 4000, 9),
        Arrival(40.0, 4000, 9),
        scaler=SteadyScaler(*wishes),
        profile=profile(per_token=0.01),
        service=spec(drain={"deadline": "20s"}, engine={"chunkTokens": 4096}, routing={"whenPrefillBusy": "Wait"}),
    )
    assert result.finished == 2
    assert [request.done > 120 for request in ended] == [False, True]
    _check(made)


def test_the_same_input_gives_the_same_bytes():
    arrivals = [*steady(10.0, each=0.2), *steady(5.0, since=8.0, tokens=700, output=30)]
    service = spec(largest=4)
    first, second = (
        json.dumps(dataclasses.asdict(_engine(arrivals, LegatoScaler(service), service).run())) for _ in range(2)
    )
    assert first == second


# An id names all before it, as those of traces do.
IDS = st.lists(st.integers(1, 3), max_size=4).map(
    lambda turns: tuple(itertools.accumulate(turns, lambda before, turn: 4 * before + turn))
)
ARRIVALS = st.builds(Arrival, st.floats(0, 120), st.integers(1, 4000), st.integers(1, 90), IDS)
SIZES = st.fixed_dictionaries({"prefill": st.integers(0, 4), "decode": st.integers(0, 4)})


@settings(max_examples=25, deadline=None)
@given(
    st.lists(ARRIVALS, max_size=40),
    st.lists(st.tuples(st.integers(0, 150), SIZES), max_size=5),
    st.booleans(),
    st.sampled_from((5000, 20_000)),
    st.sampled_from((2000.0, 1e12)),
)
def test_whatever_is_wished_every_request_is_accounted_for(arrivals, wishes, unified, kv_tokens, rate):
    """And every block is free or cached."""
    bounds = {"prefill": {"min": 0, "max": 0 if unified else 4}, "decode": {"min": 1, "max": 4}}
    service = spec(scaling=bounds, drain={"deadline": "10s"})
    start = (0, {"prefill": 1, "decode": 1})
    scaler = SteadyScaler(*sorted((start, *wishes), key=lambda wish: wish[0]))
    made = _engine(arrivals, scaler, service, profile=profile(kv_tokens, 7.0), handoff_rate=rate)
    result = made.run()
    assert result.offered == len(arrivals) == result.finished + result.refused
    _check(made)
