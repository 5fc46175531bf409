"""The scheduler engine: real schedulers, admission and routing in virtual time."""

from functools import partial

import pytest
import simulated_service
from known_signals import spec as known
from simulated_service import SteadyScaler, check_idle, steady

from legato_cli.simulation.workload import Arrival

serve = partial(simulated_service.serve, kind="scheduler")


def test_a_prompt_takes_its_chunks_and_an_answer_its_steps():
    """1,200 tokens are steps of 512, 512 and 176; each of the 10 later tokens takes a step of 10.1 ms."""
    made, result, (request,) = serve(Arrival(3.0, 1200, 11))
    assert request.ttft == pytest.approx(3 * 0.01 + 0.12)
    assert request.tpot == pytest.approx(0.0101)
    assert (result.finished, result.attainment) == (1, 1.0)
    check_idle(made)


def test_the_last_blocks_of_a_prompt_take_time_to_arrive():
    """512 tokens travel while the other 88 are computed, which then follow, 10,000 a second."""
    _, _, (request,) = serve(Arrival(3.0, 600, 2), handoff_rate=10_000)
    computed = 0.02 + 0.06
    assert request.ttft == pytest.approx(computed + (512 - 188) / 10_000 + 88 / 10_000)


def test_prompts_go_to_where_their_prefix_is_being_computed():
    """They come before any block of the first one is stored; else both workers would compute its 2,048 tokens."""
    burst = [Arrival(40.0 + 0.001 * i, 2560, 1, (1, 2, 3, 4, 5 + i)) for i in range(4)]
    two = SteadyScaler((0.0, {"prefill": 2, "decode": 1}))
    made, _, _ = serve(Arrival(0.0, 10, 1), *burst, scaler=two, spec=known(routing={"whenPrefillBusy": "Wait"}))
    cached = [worker.blocks.counts().cached for worker in made.pods.of_pool("prefill")]
    assert sorted(cached) == [0, (2048 + 4 * 512) // 16]
    check_idle(made)


def test_prompts_that_begin_otherwise_share_nothing():
    """The second prompt begins otherwise, so nothing of it is known; its second id is of course another one."""
    _, _, ended = serve(Arrival(1.0, 1024, 1, (1, 2)), Arrival(5.0, 1024, 1, (3, 4)))
    assert ended[1].uncached == 1024


def test_decode_workers_prefill_where_no_other_worker_does():
    wishes = SteadyScaler((0.0, {"prefill": 0, "decode": 1}))
    service = known(scaling={"prefill": {"min": 0, "max": 2}, "decode": {"min": 1, "max": 2}})
    made, result, _ = serve(*steady(100.0, each=1.0), scaler=wishes, spec=service)
    assert result.timeline[-1].ready == {"prefill": 0, "decode": 1}
    assert result.finished == 100
    check_idle(made)


def test_there_was_no_traffic_before_the_beginning():
    """So that what arrives in the first seconds is a rate over a whole window, not a burst."""
    seen = []
    scaler = SteadyScaler((0.0, {"prefill": 1, "decode": 1}))
    scaler.sizes = lambda now: (seen.append(now), {})[1]
    serve(*steady(6.0, each=1.0), scaler=scaler)
    assert seen[2].now == 4.0
    assert seen[2].signals.traffic.seconds >= 60
    assert sum(lengths.requests for lengths in seen[2].signals.traffic.arrivals) == 4
