"""What every engine promises, in virtual time."""

import dataclasses
import itertools
import json

import pytest
from budget import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_signals import spec
from simulated_service import SteadyScaler, check_idle, engine, profile, serve, steady, workload

from legato_cli.simulation.engine import SLOTS
from legato_cli.simulation.scaler import LegatoScaler
from legato_cli.simulation.simulator import ENGINES
from legato_cli.simulation.workload import Arrival

ONE_LESS = SteadyScaler((0.0, {"decode": 2, "prefill": 1}), (60.0, {"decode": 1}))


@pytest.fixture(params=ENGINES)
def kind(request):
    return request.param


def test_a_prefix_that_a_worker_holds_is_not_computed_again(kind):
    first, again = Arrival(1.0, 2048, 1, (1, 2, 3, 4)), Arrival(5.0, 2560, 1, (1, 2, 3, 4, 5))
    _, _, ended = serve(first, again, kind=kind)
    assert ended[1].uncached == 512
    assert ended[1].ttft == pytest.approx(0.01 + 0.0512)


def test_a_full_cache_holds_requests_and_then_serves_them_all(kind):
    """Each needs 2,000 of 5,000 tokens, so some are preempted or wait."""
    made, result, ended = serve(*steady(1.0, tokens=1000, output=1000), profile=profile(kv_tokens=5000), kind=kind)
    assert result.finished == 10
    assert max(sample.kv_usage for sample in result.timeline) <= 1
    assert ended[-1].ttft > ended[0].ttft + 10
    check_idle(made)


def test_a_request_longer_than_the_model_allows_is_refused(kind):
    _, result, _ = serve(Arrival(1.0, 4000, 97), Arrival(1.0, 4000, 96), kind=kind)
    assert (result.refused, result.finished, result.attainment) == (1, 1, 0.5)


def test_requests_wait_at_most_until_their_deadline(kind):
    impatient = spec(gateway={"defaultDeadline": "6s"})
    made, result, _ = serve(*steady(8.0, tokens=4000), Arrival(60.0, 10, 1), spec=impatient, kind=kind)
    assert result.refused > 0
    assert result.finished + result.refused == result.offered
    assert result.ttft.p99 < 10
    check_idle(made)


def test_sequences_of_a_draining_worker_go_on_elsewhere(kind):
    """So it is gone at the next look, although they decode for 15 s each, and nothing is computed again."""
    arrivals = [*steady(56.0, each=4.0, since=4.0, output=1500, tokens=100), Arrival(100.0, 10, 1)]
    made, result, ended = serve(*arrivals, scaler=ONE_LESS, kind=kind)
    assert result.finished == result.offered == 15
    assert max(request.tpot for request in ended) < 0.015
    assert result.gpu_hours * 3600 == pytest.approx(3 * 62 + 2 * 38)
    check_idle(made)


def test_sequences_in_a_worker_at_its_drain_deadline_start_again(kind):
    """No room elsewhere for 50 s of decoding; at the deadline, 20 s more are left, for which it waits 20 s."""
    made, result, ended = serve(
        Arrival(50.0, 3000, 1000),
        Arrival(50.0, 3000, 1000),
        Arrival(200.0, 10, 1),
        scaler=ONE_LESS,
        profile=profile(kv_tokens=4032, start=1.0, per_step=0.05),
        spec=spec(drain={"deadline": "20s"}),
        kind=kind,
    )
    assert result.finished == 3
    assert sorted(request.arrival.at for request in ended) == [50.0, 50.0, 200.0]
    assert max(request.done for request in ended if request.arrival.at == 50.0) > 115
    assert result.gpu_hours * 3600 == pytest.approx(3 * 80 + 2 * 120)
    check_idle(made)


def test_prompts_computed_for_a_worker_that_is_gone_start_again(kind):
    """40 s for each prompt: at 80 s, the second one is half computed for the worker that is deleted then."""
    made, result, ended = serve(
        Arrival(40.0, 4000, 9),
        Arrival(40.0, 4000, 9),
        scaler=ONE_LESS,
        profile=profile(per_token=0.01),
        spec=spec(drain={"deadline": "20s"}, engine={"chunkTokens": 4096}, routing={"whenPrefillBusy": "Wait"}),
        kind=kind,
    )
    assert result.finished == 2
    assert [request.done > (160 if kind == "fluid" else 120) for request in ended] == [False, True]
    assert len(made.pods.all) == 2
    check_idle(made)


def test_the_same_input_gives_the_same_bytes(kind):
    arrivals = workload(steady(6.0, each=0.2), steady(3.0, since=4.0, tokens=700, output=30))
    bounded = spec(largest=4)
    first, second = (json.dumps(dataclasses.asdict(engine(arrivals, spec=bounded, kind=kind).run())) for _ in range(2))
    assert first == second


# An id names all before it, as those of traces do.
IDS = st.lists(st.integers(1, 3), max_size=4).map(
    lambda blocks: tuple(itertools.accumulate(blocks, lambda before, block: 4 * before + block))
)
ARRIVALS = st.builds(Arrival, st.floats(0, 120), st.integers(1, 5000), st.integers(1, 90), IDS)
SIZES = st.fixed_dictionaries({"prefill": st.integers(0, 6), "decode": st.integers(0, 6)})


@pytest.mark.parametrize("kind", ENGINES)
@settings(max_examples=times(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(ARRIVALS, max_size=40),
    st.lists(st.tuples(st.integers(0, 150), SIZES), max_size=5),
    st.booleans(),
    st.sampled_from((5000, 20_000)),
    st.sampled_from((2000.0, 1e12)),
)
def test_whatever_is_desired_every_request_is_accounted_for(kind, arrivals, desired, unified, kv_tokens, rate):
    """And nothing is left anywhere."""
    bounds = {"prefill": {"min": 0, "max": 0 if unified else 4}, "decode": {"min": 1, "max": 4}}
    scaler = SteadyScaler(*sorted(((0, {"prefill": 1, "decode": 1}), *desired), key=lambda since: since[0]))
    made, result, _ = serve(
        *arrivals,
        scaler=scaler,
        spec=spec(scaling=bounds, drain={"deadline": "10s"}),
        profile=profile(kv_tokens, 7.0),
        handoff_rate=rate,
        kind=kind,
    )
    assert result.offered == len(arrivals) == result.finished + result.refused
    assert result.unfinished == 0
    check_idle(made)


class _UngrantedScaler(LegatoScaler):
    """Keeps one worker of each pool, and the sizes that Legato would have."""

    def __init__(self):
        super().__init__(spec(largest=50))
        self.desired = []

    def sizes(self, seen):
        self.desired.append(super().sizes(seen))
        return {"prefill": 1, "decode": 1}


def test_prompts_that_wait_for_prefill_need_no_decode_worker_in_either():
    """80 of them are queued at the worker and have blocks where they will decode, but a handful decode at a time."""
    arrivals = [*steady(80.0, each=1.0, tokens=240), *steady(4.0, each=0.02, since=60.0, tokens=240)]
    most = []
    for kind in ENGINES:
        serve(*arrivals, scaler=(scaler := _UngrantedScaler()), kind=kind)
        most.append({pool: max(sizes[pool] for sizes in scaler.desired) for pool in ("prefill", "decode")})
    assert most[0] == most[1]
    assert most[0]["decode"] == 1


def test_where_all_slots_are_taken_a_first_token_waits_for_one_in_both():
    """As many as a worker has slots begin at the same time, and all others when these have ended."""
    latest = []
    waiting, room = spec(largest=50, routing={"whenPrefillBusy": "Wait"}), profile(kv_tokens=200_000)
    for kind in ENGINES:
        _, result, ended = serve(*[Arrival(1.0, 100, 1000)] * (SLOTS + 6), spec=waiting, profile=room, kind=kind)
        assert result.finished == SLOTS + 6
        first = sorted(request.ttft for request in ended)
        assert first[SLOTS - 1] < 3 < 10 < first[SLOTS]
        latest.append(first[-1])
    assert latest[0] == pytest.approx(latest[1], rel=0.02)
