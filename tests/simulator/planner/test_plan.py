"""The search finds the smallest shape, on services whose attainment is known by formula."""

import pytest
from known_signals import spec
from simulation_results import result

from legato_engine.policy import Profile, StepTimes
from legato_simulator.planner import lockstep, window
from legato_simulator.planner.plan import PoolPlanner
from legato_simulator.planner.shape import PoolLayout, PoolShape
from legato_simulator.report import plan_text
from legato_simulator.simulator import ServiceSimulator
from legato_simulator.workload.workload import Arrival, Workload

MANIFEST = {"engine": {"chunkTokens": 2048}, "slo": {"ttft": "2s", "tpot": "50ms"}}


def _profile(tensor=1, per_token=1e-4):
    return Profile("a test", StepTimes(0.01, 1e-4, 1e-8, per_token, 0), 64_000, 30, tensor=tensor)


def _workload(count=200, every=0.5, prompt=1500, output=20):
    return Workload("chat", tuple(Arrival(every * i, prompt, output) for i in range(count)))


def _mixed(count, others, lengths):
    """Short chats, and then others of these lengths."""
    whole = _workload(count + others).arrivals
    return Workload("mixed", (*whole[:count], *(Arrival(each.at, *lengths) for each in whole[count:])))


def _planner(gpus=8, workload=None, others=(), per_token=1e-4, **changes):
    made = spec(**(MANIFEST | changes))
    service = ServiceSimulator(made, _profile(per_token=per_token), others=others, objectives=made.slo)
    return PoolPlanner(service, window.busiest(workload or _workload(), 600), gpus)


def _plan(capacity, gpus=8, **given):
    """Plans for a service in which each shape serves `capacity` times the rate."""
    planner, seen = _planner(gpus, **given), []

    def simulated(trial):
        seen.append(trial.shape)
        served = min(1.0, capacity(trial.shape) / trial.load)
        return result(attainment=served, missed_ttft=round((1 - served) * 2400))

    made = planner.plan(lambda trials: map(simulated, trials))
    assert all(planner.allows(shape) and shape.gpus <= gpus for shape in seen)
    return made


def _separate(prefill, decode):
    """Pools that each serve a multiple of the rate for each worker."""
    return lambda shape: 0.1 if shape.layout.unified else min(prefill * shape.prefill, decode * shape.decode)


@pytest.mark.parametrize(
    ("capacity", "workers", "load"),
    [
        (lambda shape: 0.45 * shape.decode if shape.layout.unified else 0.1, "3 unified", 1.35),
        (_separate(0.5, 0.34), "2 prefill + 3 decode", 1.0),
        (
            lambda shape: 0.6 * shape.gpus + 0.1 * shape.layout.unified,
            "2 unified",
            1.3,
        ),  # of as many GPUs, the higher load
        (lambda shape: 0.6 * shape.gpus - 0.1 * shape.layout.unified, "1 prefill + 1 decode", 1.2),
        (lambda shape: (0.5 if shape.chunk == 512 else 0.45) * shape.gpus, "2 unified", 1.0),  # with another chunk
        (lambda shape: (0.5 if shape.tpot == 0.035 else 0.45) * shape.gpus, "2 unified", 1.0),  # or step objective
        (lambda shape: (1.2 if shape.chunk == 4096 else 0.01) * shape.gpus, "1 unified", 1.2),  # however far it missed
        (lambda shape: (1.2 if shape.chunk == 4096 else 0.3) * shape.gpus, "1 unified", 1.2),  # or with more GPUs
        (lambda shape: 0.4 * shape.gpus * (shape.chunk == 4096), "3 unified", 1.2),  # or with all GPUs
    ],
)
def test_the_fewest_gpus_win_then_the_highest_load(capacity, workers, load):
    plan = _plan(capacity)
    assert (plan.chosen.shape.workers, plan.chosen.meets) == (workers, True)
    assert load / 0.95 / 1.04 < plan.chosen.load <= load / 0.95


@pytest.mark.parametrize("before", [(), [Arrival(0, 63_000, 1)]])  # only what counts is in the arithmetic
def test_without_a_shape_that_meets_the_closest_and_the_arithmetic_are_shown(before):
    chats = tuple(Arrival(120 + each.at, each.prompt, each.output) for each in _workload(1201).arrivals)
    workload = Workload("chat", (*before, *chats))
    plan = _plan(lambda shape: 0.1 * shape.gpus + 0.05 * shape.layout.unified, gpus=4, workload=workload)
    assert (plan.chosen.shape.workers, plan.chosen.meets) == ("4 unified", False)
    shown = plan_text.text(plan)
    assert "| closest | 4 unified" in shown
    assert "keep 0.32 workers busy" in shown
    assert "(2 requests/s ÷ 6.25 " in shown
    assert "with 45.0%: 55.0% of the requests miss slo.ttft" in shown


def test_fewer_gpus_than_the_estimate_are_tried_where_the_limits_allow_them():
    pairs = {"maxDecodePerPrefill": 1, "maxPrefillPerDecode": 1}  # no odd numbers of GPUs
    made = _plan(lambda shape: 1.2 * (not shape.layout.unified), 16, workload=_workload(every=0.02), scaling=pairs)
    assert made.chosen.shape.workers == "1 prefill + 1 decode"


@pytest.mark.parametrize(("every", "short"), [(0.05, True), (0.5, False)])
def test_a_trace_that_queues_can_absorb_is_called_short(every, short):
    plan = _plan(lambda shape: 1.2 * shape.gpus, workload=_workload(every=every))
    assert ("in less than 10 × slo.ttft, queues hide" in plan_text.about(plan)) == short


def test_the_second_is_as_far_as_its_load_and_what_it_misses():
    shown = plan_text.text(_plan(lambda shape: 0.6 * shape.gpus + 0.2 * shape.layout.unified))
    assert "One pool: 2 unified (2 GPUs)" in shown
    assert "Second: 1 prefill + 1 decode" in shown
    assert "14% less; at 1.4" in shown


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"slo": {"tpot": "10ms"}}, "a decode step of one sequence with 1510 tokens takes 10.1 ms"),
        ({"slo": {"ttft": "100ms"}}, "1500 uncached tokens after 0 cached ones take 160 ms (1 x 10 ms a step + 150 ms"),
        ({"workload": _workload(prompt=70_000)}, "200 of 200 requests are longer than the 64000 tokens"),
    ],
)
def test_objectives_that_no_size_meets_are_named_with_their_arithmetic(given, reason):
    plan = _plan(lambda shape: 0.5, **given)
    assert all(reason in text for text in plan.refused.values())
    assert plan.simulations <= 12  # of the largest sizes only


@pytest.mark.parametrize(
    ("given", "pool"),
    [
        ({"workload": _mixed(188, 12, (40_000, 1)), "slo": {"ttft": "5s", "tpot": "10.3ms"}}, "1 unified"),  # no TPOT
        ({"engine": {"chunkTokens": 16}, "slo": {"ttft": "1s", "tpot": "50ms"}}, "1 unified"),  # in larger chunks
        ({"slo": {"tpot": "10ms"}}, "1 unified"),  # though the estimate says so
        ({"workload": _workload(every=0.05)}, "1 unified"),  # a burst, which queues
    ],
)
def test_objectives_that_a_size_meets_are_not_called_impossible(given, pool):
    plan = _plan(lambda shape: 1.2 * shape.gpus * (shape.chunk > 16), **given)
    assert (plan.chosen.shape.workers, plan.refused) == (pool, {})


@pytest.mark.parametrize(
    "given",
    [
        {"workload": _mixed(188, 12, (40_000, 1)), "slo": {"ttft": "5s", "tpot": "10.3ms"}},
        {"workload": _mixed(10, 190, (1500, 1)), "slo": {"ttft": "2s", "tpot": "1ms"}},
        {"engine": {"chunkTokens": 16}, "slo": {"ttft": "1s", "tpot": "50ms"}},
    ],
)
def test_estimates_refuse_neither_for_answers_of_one_token_nor_for_a_small_chunk(given):
    assert _plan(lambda shape: 0.01, **given).refused == {}


@pytest.mark.parametrize("gpu", ["nvidia.com/gpu", "amd.com/gpu"])
def test_degrees_are_those_with_a_profile_and_use_its_times(gpu):
    measured, others = _profile(tensor=2, per_token=3e-5), {"memory": "12Gi", "example.com/gpu-memory": "8192"}
    pool = {"resources": {"limits": {gpu: "1", **others}}}
    planner = _planner(others=(measured,), prefill=pool, decode=pool)
    assert planner.layouts() == [PoolLayout(p, d) for p in (0, 1, 2) for d in (1, 2)]
    shape = PoolShape(PoolLayout(2, 1), 1, 2, 2048, 0.05)
    made = shape.spec(planner.written)
    assert (made.prefill.parallelism.tensor, made.prefill.resources.limits) == (2, {gpu: "2", **others})
    run = ServiceSimulator(made, planner.service.profile, others=(measured,)).run_settings(_workload())
    assert (run.worker_profile("prefill"), run.worker_profile("decode")) == (measured, planner.service.profile)


def test_requests_are_judged_by_the_manifest_and_not_by_the_slo_that_is_tried():
    slow = lockstep.ShapeTrial(PoolShape(PoolLayout(0, 1), 0, 4, 2048, 0.001))
    assert _planner().simulate(slow).attainment == 1


def test_a_chunk_that_serves_only_a_higher_load_does_not_hide_the_one_that_serves_this():
    def simulated(trial):
        reached = trial.load < 1.2 if trial.shape.chunk == 2048 else trial.load > 1
        return result(attainment=1.0 if reached else 0.5)

    chosen = _planner(gpus=1).plan(lambda trials: map(simulated, trials)).chosen
    assert (chosen.meets, chosen.shape.chunk) == (True, 2048)


def test_several_processes_give_the_same_plan():
    planner = _planner(gpus=2, workload=_workload(20))

    def plan(jobs):
        with lockstep.batches(planner.simulate, jobs) as batch:
            return plan_text.as_json(planner.plan(batch))

    assert plan(1) == plan(2)
