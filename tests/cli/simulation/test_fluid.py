"""A workload in virtual time."""

import pytest
from known_signals import spec
from simulated_service import ONE, SteadyScaler, engine, profile, serve, steady, workload

from legato_cli.simulation.request import SimulatedRequest
from legato_cli.simulation.rivals.fixed import FixedUnified
from legato_cli.simulation.simulated_pod import WorkerKind
from legato_cli.simulation.simulated_worker import SimulatedWorker
from legato_cli.simulation.simulator import ServiceSimulator
from legato_cli.simulation.workload import Arrival


def test_two_prompts_on_one_worker_take_what_the_profile_says():
    """1,200 tokens are steps of 512, 512 and 176, of which the last has room for 336 of the second prompt's 600:
    2 x (10 + 51.2) + (10 + 51.2) ms, and then 10 + 26.4 ms for its other 264."""
    _, _, ended = serve(Arrival(3.0, 1200, 1), Arrival(3.0, 600, 1))
    assert [request.ttft for request in ended] == pytest.approx([3 * 0.0612, 3 * 0.0612 + 0.0364])


def test_pairs_of_a_prompt_token_and_its_context_take_time():
    _, _, ended = serve(Arrival(1.0, 1000, 1), profile=profile(per_pair=1e-7))
    assert ended[0].ttft == pytest.approx(0.02 + 0.1 + 1e-7 * 1000 * 1000 / 2)


def test_a_worker_tells_the_rate_of_prompts_with_the_context_of_late():
    """1,000 tokens attend to 500 each."""
    made, _, _ = serve(Arrival(1.0, 1000, 1), profile=profile(per_pair=1e-6), spec=spec(engine={"chunkTokens": 1000}))
    (worker,) = made.pods.of_pool("prefill")
    assert worker.rate == pytest.approx(1 / (0.0001 + 0.01 / 1000 + 500e-6))


@pytest.mark.parametrize(
    ("requested", "given", "tokens"),
    [
        ({}, {"chunkTokens": "Auto"}, 256),
        ({"nvidia.com/gpu": 1}, {"chunkTokens": "Auto"}, 2048),
        ({}, {"chunkTokens": 64}, 64),
    ],
)
def test_chunks_suit_what_pools_request_unless_told(requested, given, tokens):
    service = spec(prefill={"resources": {"requests": requested, "limits": requested}}, engine=given)
    assert engine(workload([]), ONE, spec=service).kind.chunk_tokens == tokens


@pytest.mark.parametrize(("again", "told"), [(0, [(0, 0), (1, 300), (1, 300)]), (1, [(1, 512), (1, 512), (1, 256)])])
def test_what_is_computed_again_is_no_prompt(again, told):
    """512 tokens take 61.2 ms; 300 of another sequence wait behind them."""
    kind = WorkerKind(profile().step, 64_000, 512, 16, 0.1, 4, 512, 30.0)
    worker = SimulatedWorker("decode-0", "decode", 0, kind, -100.0)
    found = []
    for number, tokens in enumerate((512, 300)):
        first = 0.5 if number == again else None
        worker.compute(SimulatedRequest(number, Arrival(0.0, tokens, 9), tokens, uncached=tokens, first=first), 1.0)
        found.append(worker.prompts_told(1.0))
    found.append(worker.prompts_told(1.0 + 0.0612 / 2))
    assert found == told
    assert worker.queue_tokens(1.0 + 0.0612 / 2) == 556


class _SeeingScaler(SteadyScaler):
    """Remembers what its one decode worker told."""

    def __init__(self):
        super().__init__((0.0, {"prefill": 0, "decode": 1}))
        self.told = []

    def sizes(self, seen):
        workers = [worker for worker in seen.signals.workers if worker.pool == "decode" and worker.ready]
        self.told += [(each.prompts, each.prompt_tokens, each.queue_tokens) for each in workers]
        return super().sizes(seen)


def test_the_autoscaler_is_told_of_prompts_that_a_decode_worker_computes():
    """For 6 s, which is seen every 2 s."""
    serve(Arrival(61.0, 3000, 9), scaler=(scaler := _SeeingScaler()), profile=profile(per_token=0.002))
    told = [each for each in scaler.told if each != (0, 0, 0)]
    assert len(told) == 3
    assert all(prompts == 1 and 0 < tokens == queued for prompts, tokens, queued in told)


def test_a_sequence_alone_gets_a_token_a_step():
    """Its first one comes from prefill; each of the others takes 10 + 0.1 ms, and 1 us for each token before it."""
    _, _, ended = serve(Arrival(1.0, 100, 11), profile=profile(per_context=1e-6))
    assert ended[0].tpot == pytest.approx(0.0101 + 1e-6 * (100 + 10 / 2))


def test_two_sequences_slow_each_other_down_only_while_both_decode():
    """The second one comes when the first has 8 left, and takes 10 ms + 0.1 ms a row until then."""
    _, _, ended = serve(Arrival(1.0, 100, 1001), Arrival(2.0, 100, 11))
    assert ended[0].arrival.output == 11
    assert ended[0].tpot == pytest.approx(0.0102)
    assert ended[1].tpot == pytest.approx(0.0101 + 0.0001 * 10 / 1000)


def test_unified_workers_shorten_chunks_to_keep_the_objective_beside_what_decodes():
    """Of 50 ms a step, 10.1 are the decoding row's: 384 tokens fit, a multiple of 16, so 1,000 take 3 steps."""
    alone = {"scaling": {"prefill": {"min": 0, "max": 0}, "decode": {"min": 1, "max": 1}}, "slo": {"tpot": "50ms"}}
    _, _, ended = serve(Arrival(1.0, 100, 501), Arrival(2.0, 1000, 1), spec=spec(**alone), scaler=SteadyScaler((0, {})))
    longest = next(request for request in ended if request.arrival.prompt == 1000)
    assert longest.ttft == pytest.approx(3 * 0.0101 + 0.1)


def test_the_cache_forgets_what_it_has_no_room_for():
    """4,096 tokens of KV hold 8 ids."""
    others = [Arrival(2.0 + i, 2048, 1, tuple(range(10 * i, 10 * i + 4))) for i in range(1, 3)]
    again = Arrival(9.0, 2048, 1, (1, 2, 3, 4))
    _, _, ended = serve(Arrival(1.0, 2048, 1, (1, 2, 3, 4)), *others, again, profile=profile(kv_tokens=4096))
    assert ended[-1].uncached == 2048


def test_a_worker_serves_once_it_has_started():
    scaler = SteadyScaler((0.0, {"prefill": 1, "decode": 1}), (100.0, {"prefill": 2, "decode": 1}))
    _, result, _ = serve(*steady(300.0, each=1.0), scaler=scaler, start=45.0)
    ready = {sample.at: sample.ready["prefill"] for sample in result.timeline}
    assert (ready[144.0], ready[146.0]) == (1, 2)
    assert next(sample.at for sample in result.timeline if sample.wish["prefill"] == 2) == 100.0


def test_gpu_hours_count_from_creation_to_deletion():
    """A second prefill worker exists from 100 s to 202 s: it drains for one look."""
    wishes = ((0.0, {"prefill": 1, "decode": 1}), (100.0, {"prefill": 2, "decode": 1}), (200.0, {"prefill": 1}))
    _, result, _ = serve(*steady(300.0, each=1.0), Arrival(300.0, 10, 1), scaler=SteadyScaler(*wishes))
    assert result.gpu_hours * 3600 == pytest.approx(2 * 300 + 102)


def test_a_draining_worker_is_recalled_before_another_starts():
    wishes = ((0.0, {"decode": 2, "prefill": 1}), (60.0, {"decode": 1}), (62.0, {"decode": 2}))
    many = steady(70.0, each=0.25, tokens=1000, output=2000)  # more than one worker holds
    made, _, _ = serve(*many, scaler=SteadyScaler(*wishes), profile=profile(kv_tokens=150_000))
    assert made.pods.created == 3


def test_unified_service_has_one_pool_as_large_as_both():
    simulator = ServiceSimulator(spec(scaling={"prefill": {"max": 3}, "decode": {"min": 2, "max": 5}}), profile())
    assert simulator.ground(workload(steady(10))).most == {"prefill": 3, "decode": 5}
    unified = simulator.unified()
    assert unified.ground(workload(steady(10))).most == {"decode": 8}
    assert unified.simulate(workload(steady(10)), FixedUnified(0, 8).scaler()).timeline[-1].ready == {"decode": 2}


def test_rivals_that_plan_ahead_know_the_start_time_that_was_asked_for():
    assert ServiceSimulator(spec(), profile(), start=7.0).ground(workload(steady(10))).profile.start_seconds == 7.0


def test_an_idle_service_goes_to_zero_and_a_request_wakes_it():
    """Held until a decode worker has started, and computed by it as long as no prefill worker serves."""
    zero = {"prefill": {"min": 0, "max": 2}, "decode": {"min": 0, "max": 2}}
    service = spec(scaling={**zero, "idleAfter": "5m"})
    made = engine(workload([Arrival(10.0, 1000, 20), Arrival(2500.0, 1000, 20), Arrival(2600.0, 10, 1)]), spec=service)
    result = made.run()
    at_rest = [sample for sample in result.timeline if 2000 < sample.at < 2500]
    assert {(sample.wish["prefill"], sample.wish["decode"], sample.ready["decode"]) for sample in at_rest} == {
        (0, 0, 0)
    }
    assert result.finished == 3
    assert 30 < result.ttft.p99 < 30 + 2 * 2.0 + 1
