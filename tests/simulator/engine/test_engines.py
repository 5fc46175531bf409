"""Engines in virtual time: the time that each request takes, and what both of them promise."""

import itertools

import msgspec
import pytest
from budget import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_signals import spec
from simulated_service import KIND, SteadyScaler, engine, profile, serve, steady, workload

from legato_simulator.engine.fluid.simulated_worker import SimulatedWorker
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.scaler import LegatoScaler
from legato_simulator.simulator import ENGINES
from legato_simulator.workload.workload import Arrival

BOTH, FLUID, SCHEDULER = tuple(ENGINES), ("fluid",), ("scheduler",)
ONE_LESS = SteadyScaler((0.0, {"decode": 2, "prefill": 1}), (60.0, {"decode": 1}))
UNIFIED = {
    "spec": spec(scaling={"prefill": {"min": 0, "max": 0}, "decode": {"min": 1, "max": 1}}, slo={"tpot": "50ms"}),
    "scaler": SteadyScaler((0, {})),
}
OTHERS = [Arrival(2.0 + i, 2048, 1, tuple(range(10 * i, 10 * i + 4))) for i in range(1, 3)]


@pytest.fixture(params=ENGINES)
def kind(request):
    return request.param


TIMES = {
    # Steps of 512, 512 and 176 tokens; each of the 10 later tokens takes a step of 10.1 ms.
    "chunks and steps": (SCHEDULER, [Arrival(3.0, 1200, 11)], {}, {"0 ttft": 3 * 0.01 + 0.12, "0 tpot": 0.0101}),
    # Two ranks are assumed to take 0.6 of a step of one.
    "another degree for decode workers": (
        BOTH, [Arrival(3.0, 500, 11)], {"spec": spec(largest=50, decode={"parallelism": {"tensor": 2}})},
        {"0 ttft": 0.06, "0 tpot": 0.6 * 0.0101}),
    # 512 tokens travel while the other 88 are computed, which then follow, 10,000 a second.
    "last blocks of a hand-off": (
        SCHEDULER, [Arrival(3.0, 600, 2)], {"handoff_rate": 10_000}, {"0 ttft": 0.08 + (512 - 188 + 88) / 10_000}),
    # The last of three steps, 176 tokens, has room for 336 of the second prompt's 600: 3 x (10 + 51.2) ms, and then
    # 10 + 26.4 ms for its other 264.
    "two prompts in one step": (
        FLUID, [Arrival(3.0, 1200, 1), Arrival(3.0, 600, 1)], {},
        {"0 ttft": 3 * 0.0612, "1 ttft": 3 * 0.0612 + 0.0364}),
    "pairs of a prompt token and its context": (
        FLUID, [Arrival(1.0, 1000, 1)], {"profile": profile(per_pair=1e-7)}, {"0 ttft": 0.12 + 1e-7 * 1000**2 / 2}),
    # The first token comes from prefill; each of the others takes 10.1 ms, and 1 us for each token before it.
    "context": (
        FLUID, [Arrival(1.0, 100, 11)], {"profile": profile(per_context=1e-6)}, {"0 tpot": 0.0101 + 1e-6 * 105}),
    # 0.1 ms more only while both decode.
    "two that decode": (
        FLUID, [Arrival(1.0, 100, 1001), Arrival(2.0, 100, 11)], {},
        {"0 tpot": 0.0101 + 0.0001 * 10 / 1000, "1 tpot": 0.0102}),
    # Of 0.9 x 50 ms a step, 10.1 are the decoding row's: 336 tokens fit, a multiple of 16, so 1,100 take 4 steps.
    "shorter chunks alongside decoding": (
        FLUID, [Arrival(1.0, 100, 501), Arrival(2.0, 1100, 1)], UNIFIED, {"1 ttft": 4 * 0.0101 + 0.11}),
    # The first decodes alongside the second's chunks: 336 and 164 tokens, in 10.1 ms more each.
    "decoding from the step after the prompt": (
        FLUID, [Arrival(1.0, 512, 3), Arrival(1.0, 500, 1)], UNIFIED,
        {"0 ttft": 0.0612, "0 tpot": 0.0101 + 0.05 / 2, "1 ttft": 0.0612 + 2 * 0.0101 + 0.05}),
    "known prefix": (
        BOTH, [Arrival(1.0, 2048, 1, (1, 2, 3, 4)), Arrival(5.0, 2560, 1, (1, 2, 3, 4, 5))], {},
        {"1 uncached": 512, "1 ttft": 0.01 + 0.0512}),
    # Nothing is known of a prompt that begins otherwise; its second id is of course another one.
    "other beginning": (
        SCHEDULER, [Arrival(1.0, 1024, 1, (1, 2)), Arrival(5.0, 1024, 1, (3, 4))], {}, {"1 uncached": 1024}),
    # 4,096 tokens of KV hold 8 ids.
    "forgotten prefix": (
        FLUID, [Arrival(at, 2048, 1, (1, 2, 3, 4)) for at in (1.0, 9.0)] + OTHERS, {"profile": profile(kv_tokens=4096)},
        {"3 uncached": 2048}),
}  # fmt: skip


@pytest.mark.parametrize("case", TIMES)
def test_times_and_tokens_of_requests_are_those_computed_by_hand(case):
    kinds, arrivals, given, expected = TIMES[case]
    for kind in kinds:
        _, result, ended = serve(*arrivals, kind=kind, **given)
        assert result.finished == len(arrivals)
        ended.sort(key=lambda request: request.number)
        names = [name.split() for name in expected]
        assert {f"{at} {name}": getattr(ended[int(at)], name) for at, name in names} == pytest.approx(expected)


def test_drafts_are_accepted_as_the_profile_says_and_cost_what_rows_cost(kind):
    """4 drafts have 0.8 + 0.64 + 0.51 + 0.41 right ones on average: 3.36 tokens take the time of a step of 5 rows."""
    arrivals = [Arrival(1.0, 100, 401), Arrival(1.0, 100, 401)]

    def ran(acceptance, **fields):
        _, result, ended = serve(
            *arrivals, kind=kind, profile=profile(acceptance=acceptance), spec=spec(largest=50, engine=fields)
        )
        return result, sum(each.tpot for each in ended) / 2

    speculation = {"speculation": {"method": "PromptLookup", "tokens": 4}}
    plain, tpot = ran(0.8)
    assert ran(0.0, **speculation)[0] == plain
    assert tpot == pytest.approx(0.0102, rel=0.01)
    _, faster = ran(0.8, **speculation)
    assert faster == pytest.approx((0.01 + 0.0001 * 2 * 5) / 3.36, rel=0.1)


def test_a_full_cache_queues_requests_and_then_serves_them_all(kind):
    """Each needs 2,000 of 5,000 tokens, so some are preempted or wait."""
    _, result, ended = serve(*steady(1.0, tokens=1000, output=1000), profile=profile(kv_tokens=5000), kind=kind)
    assert result.finished == 10
    assert max(sample.kv_usage for sample in result.timeline) <= 1
    assert ended[-1].ttft > ended[0].ttft + 10


def test_a_request_longer_than_the_model_allows_is_refused(kind):
    short = spec(largest=50, model={"source": {"builtin": "smollm2-135m-instruct"}, "maxLength": 4096})
    _, result, _ = serve(Arrival(1.0, 4000, 97), Arrival(1.0, 4000, 96), spec=short, kind=kind)
    assert (result.refused, result.finished, result.attainment) == (1, 1, 0.5)


def test_requests_wait_at_most_until_their_deadline(kind):
    impatient = spec(gateway={"defaultDeadline": "6s"})
    _, result, _ = serve(*steady(8.0, tokens=4000), Arrival(60.0, 10, 1), spec=impatient, kind=kind)
    assert result.refused > 0
    assert result.finished + result.refused == result.offered
    assert result.ttft.p99 < 10


def _one_leaves(kind, *arrivals, **given):
    """All requests are served although one of two decode workers drains at 60 s."""
    made, result, ended = serve(*arrivals, scaler=ONE_LESS, kind=kind, **given)
    assert result.finished == result.offered == len(arrivals)
    return made, result.gpu_hours * 3600, ended


def test_sequences_of_a_draining_worker_go_on_elsewhere(kind):
    """So it is gone after the next poll, although they decode for 15 s each, and nothing is computed again."""
    arrivals = [*steady(56.0, each=4.0, since=4.0, output=1500, tokens=100), Arrival(100.0, 10, 1)]
    _, gpu_seconds, ended = _one_leaves(kind, *arrivals)
    assert max(request.tpot for request in ended) < 0.015
    assert gpu_seconds == pytest.approx(3 * 62 + 2 * 38)


def test_sequences_in_a_worker_at_its_drain_deadline_start_again(kind):
    """No room elsewhere for 50 s of decoding; at the deadline, 20 s more are left, for which it waits 20 s."""
    narrow = {"profile": profile(kv_tokens=4032, start=1.0, per_step=0.05), "spec": spec(drain={"deadline": "20s"})}
    long = Arrival(50.0, 3000, 1000)
    _, gpu_seconds, ended = _one_leaves(kind, long, long, Arrival(200.0, 10, 1), **narrow)
    assert max(request.done for request in ended if request.arrival == long) > 115
    assert gpu_seconds == pytest.approx(3 * 80 + 2 * 120)


def test_prompts_computed_for_a_worker_that_is_gone_start_again(kind):
    """40 s for each prompt: at 80 s, the second one is half computed for the worker that is deleted then."""
    waiting = spec(drain={"deadline": "20s"}, engine={"chunkTokens": 4096}, routing={"whenPrefillBusy": "Wait"})
    made, _, ended = _one_leaves(kind, *[Arrival(40.0, 4000, 9)] * 2, profile=profile(per_token=0.01), spec=waiting)
    assert [request.done > (160 if kind == "fluid" else 120) for request in ended] == [False, True]
    assert len(made.pods.all) == 2


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
    st.sampled_from(((), (), (100, 900))),
)
def test_whatever_is_desired_every_request_is_accounted_for(kind, arrivals, desired, unified, kv_tokens, rate, windows):
    bounds = {"prefill": {"min": 0, "max": 0 if unified else 4}, "decode": {"min": 1, "max": 4}}
    _, result, _ = serve(
        *arrivals,
        scaler=SteadyScaler(*sorted(((0, {"prefill": 1, "decode": 1}), *desired), key=lambda since: since[0])),
        spec=spec(scaling=bounds, drain={"deadline": "10s"}),
        profile=msgspec.structs.replace(profile(kv_tokens, 7.0), windows=windows),
        handoff_rate=rate,
        kind=kind,
    )
    assert result.offered == len(arrivals) == result.finished + result.refused
    assert result.unfinished == 0


class _WatchingScaler(SteadyScaler):
    """Keeps these sizes, and what it saw."""

    def __init__(self, **sizes):
        super().__init__((0.0, sizes))
        self.seen = []

    def sizes(self, seen):
        self.seen.append(seen)
        return super().sizes(seen)


def test_prompts_that_wait_for_prefill_need_no_decode_worker_in_either():
    """80 of them are queued at the worker and have blocks where they will decode, but a handful decode at a time."""
    arrivals = [*steady(80.0, each=1.0, tokens=240), *steady(4.0, each=0.02, since=60.0, tokens=240)]
    most = []
    for kind in ENGINES:
        serve(*arrivals, scaler=(watching := _WatchingScaler(prefill=1, decode=1)), kind=kind)
        legato = LegatoScaler(spec(largest=50))
        desired = [legato.sizes(seen) for seen in watching.seen]
        most.append({pool: max(sizes[pool] for sizes in desired) for pool in ("prefill", "decode")})
    assert most[0] == most[1]
    assert most[0]["decode"] == 1


def test_where_all_slots_are_taken_a_first_token_waits_for_one_in_both():
    """As many as a worker has slots begin at the same time, and all others when these have ended."""
    latest = []
    waiting = spec(largest=50, routing={"whenPrefillBusy": "Wait"}, engine={"maxRunning": 64})
    room = profile(kv_tokens=200_000)
    for kind in ENGINES:
        _, result, ended = serve(*[Arrival(1.0, 100, 1000)] * (64 + 6), spec=waiting, profile=room, kind=kind)
        assert result.finished == 64 + 6
        first = sorted(request.ttft for request in ended)
        assert first[63] < 3 < 10 < first[64]
        latest.append(first[-1])
    assert latest[0] == pytest.approx(latest[1], rel=0.02)


def test_prompts_go_to_where_their_prefix_is_being_computed():
    """They come before any block of the first one is stored; else both workers would compute its 2,048 tokens."""
    burst = [Arrival(40.0 + 0.001 * i, 2560, 1, (1, 2, 3, 4, 5 + i)) for i in range(4)]
    two, waiting = SteadyScaler((0.0, {"prefill": 2, "decode": 1})), spec(routing={"whenPrefillBusy": "Wait"})
    made, *_ = serve(Arrival(0.0, 10, 1), *burst, scaler=two, spec=waiting, kind="scheduler")
    cached = [worker.blocks.counts().cached for worker in made.pods.of_pool("prefill")]
    assert sorted(cached) == [0, (2048 + 4 * 512) // 16]


def test_the_autoscaler_learns_of_prompts_that_a_decode_worker_computes():
    """For 6 s, which is seen every 2 s."""
    watching = _WatchingScaler(prefill=0, decode=1)
    serve(Arrival(61.0, 3000, 9), scaler=watching, profile=profile(per_token=0.002))
    workers = [each for seen in watching.seen for each in seen.signals.workers if each.pool == "decode" and each.ready]
    busy = [each for each in workers if (each.prompts, each.prompt_tokens, each.queue_tokens) != (0, 0, 0)]
    assert len(busy) == 3
    assert all(each.prompts == 1 and 0 < each.prompt_tokens == each.queue_tokens for each in busy)


@pytest.mark.parametrize(("again", "prompts"), [(0, [(0, 0), (1, 300), (1, 300)]), (1, [(1, 512), (1, 512), (1, 256)])])
def test_what_is_computed_again_is_not_a_prompt(again, prompts):
    """512 tokens take 61.2 ms; 300 of another sequence wait behind them."""
    worker, now = SimulatedWorker("decode-0", "decode", KIND, -100.0), 1.0 + 0.0612 / 2
    reported = []
    for number, tokens in enumerate((512, 300)):
        first = 0.5 if number == again else None
        worker.compute(SimulatedRequest(number, Arrival(0.0, tokens, 9), tokens, uncached=tokens, first=first), 1.0)
        reported.append(worker.new_prompts(1.0))
    assert [*reported, worker.new_prompts(now)] == prompts
    assert worker.queue_tokens(now) == 556


def test_a_worker_serves_once_it_has_started_and_costs_gpu_hours_from_creation_to_deletion():
    """A second prefill worker exists from 100 s to 202 s: it drains for one poll."""
    sizes = ((0.0, {"prefill": 1, "decode": 1}), (100.0, {"prefill": 2, "decode": 1}), (200.0, {"prefill": 1}))
    _, result, _ = serve(*steady(300.0, each=1.0), Arrival(300.0, 10, 1), scaler=SteadyScaler(*sizes), start=45.0)
    ready = {sample.at: sample.ready["prefill"] for sample in result.timeline}
    assert (ready[144.0], ready[146.0]) == (1, 2)
    assert next(sample.at for sample in result.timeline if sample.desired["prefill"] == 2) == 100.0
    assert result.gpu_hours * 3600 == pytest.approx(2 * 300 + 102)


def test_an_idle_service_goes_to_zero_and_a_request_wakes_it():
    """Queued until a decode worker has started, and computed by it as long as no prefill worker serves."""
    zero = {"prefill": {"min": 0, "max": 2}, "decode": {"min": 0, "max": 2}}
    arrivals = [Arrival(10.0, 1000, 20), Arrival(2500.0, 1000, 20), Arrival(2600.0, 10, 1)]
    result = engine(workload(arrivals), spec=spec(scaling={**zero, "idleAfter": "5m"})).run()
    at_rest = [sample for sample in result.timeline if 2000 < sample.at < 2500]
    empty = {"prefill": 0, "decode": 0}
    assert all(sample.desired == empty == sample.ready for sample in at_rest)
    assert result.finished == 3
    assert 30 < result.ttft.p99 < 30 + 2 * 2.0 + 1
