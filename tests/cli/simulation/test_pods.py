"""Workers come and go within the limits of the manifest."""

import itertools

from budget import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_signals import spec
from simulated_service import profile

from legato_cli.simulation.pods import Pods
from legato_cli.simulation.request import SimulatedRequest
from legato_cli.simulation.simulated_pod import WorkerKind
from legato_cli.simulation.simulated_worker import SimulatedWorker
from legato_cli.simulation.workload import Arrival
from legato_operator.api import pool_sizes, roles

KIND = WorkerKind(profile().step, 64_000, 512, 16, 0.1, 4, 512, start=7.0)
NUMBERS = itertools.count()
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def _service(budget=None, **parts):
    bounds = {"prefill": {"min": 0, "max": 5}, "decode": {"min": 1, "max": 5}}
    scaling = {**bounds, "gpuBudget": budget, "maxPrefillPerDecode": 2}
    return spec(scaling=scaling, prefill=GPU, decode=GPU, drain={"deadline": "10s"}, **parts)


def _staying(pods, pool):
    return [worker for worker in pods.of_pool(pool) if worker.draining_since is None]


def _occupy(worker):
    worker.compute(SimulatedRequest(next(NUMBERS), Arrival(0.0, 100, 1), 100, 100), 0.0)


def _grown(decode):
    """Pods with this number of ready decode workers, at 10 s."""
    pods = Pods(_service(), KIND, SimulatedWorker)
    pods.wish({"decode": decode})
    pods.reconcile(2.0)
    pods.reconcile(10.0)
    return pods


def test_a_pool_begins_with_its_initial_size_ready_and_stays_within_its_bounds():
    pods = Pods(_service(), KIND, SimulatedWorker)
    assert pods.ready(0.0) == {"decode": 1, "prefill": 1}
    pods.wish({"prefill": 9, "decode": 0})
    assert pods.desired == {"prefill": 5, "decode": 1}


def test_workers_that_start_go_immediately_and_the_idlest_ready_one_drains():
    pods = _grown(3)
    first, second, third = pods.of_pool("decode")
    _occupy(first)
    _occupy(third)
    pods.wish({"decode": 4})
    pods.reconcile(12.0)
    pods.wish({"decode": 2})
    assert [worker.created for worker in pods.reconcile(14.0)] == [12.0]
    assert _staying(pods, "decode") == [first, third]
    assert pods.reconcile(16.0) == [second]


def test_the_busiest_draining_worker_is_recalled_and_nothing_is_created():
    pods = _grown(3)
    for worker in (*pods.of_pool("decode"), busiest := pods.of_pool("decode")[2]):
        _occupy(worker)
    pods.wish({"decode": 1})
    pods.reconcile(12.0)
    pods.wish({"decode": 2})
    pods.reconcile(14.0)
    assert (len(_staying(pods, "decode")), pods.created, busiest.draining_since) == (2, 4, None)


def test_an_idle_draining_worker_is_recalled_too_and_not_deleted():
    pods = _grown(2)
    pods.wish({"decode": 1})
    pods.reconcile(12.0)
    pods.wish({"decode": 2})
    assert pods.reconcile(14.0) == []
    assert len(_staying(pods, "decode")) == 2


def test_a_busy_worker_is_deleted_at_its_drain_deadline():
    pods = _grown(2)
    for worker in pods.of_pool("decode"):
        _occupy(worker)
    pods.wish({"decode": 1})
    pods.reconcile(12.0)
    assert [len(pods.reconcile(now)) for now in (20.0, 22.0)] == [0, 1]


SIZES = st.fixed_dictionaries({"prefill": st.integers(0, 7), "decode": st.integers(0, 7)})


@settings(max_examples=times(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(SIZES, st.integers(1, 4), st.booleans()), max_size=12), st.sampled_from((2, 4, 6, None)))
def test_budget_ratio_and_minima_hold_at_every_look(steps, budget):
    """Whatever is wished, and however long draining workers hold their GPUs."""
    service, now = _service(budget), 0.0
    pods = Pods(service, KIND, SimulatedWorker)
    for sizes, looks, busy in steps:
        pods.wish(sizes)
        for _ in range(looks):
            now += 2.0
            before = set(pods.all)
            if busy:
                for worker in pods.all:
                    _occupy(worker)
            pods.reconcile(now)
            staying = {pool: len(_staying(pods, pool)) for pool in roles.of(service)}
            assert budget is None or pods.gpus <= budget
            assert 1 <= staying["decode"] <= 5
            assert staying["prefill"] <= 5
            for worker in set(pods.all) - before:
                others = staying[pool_sizes.other(worker.pool)]
                assert pool_sizes.keeps_ratio(service, worker.pool, staying[worker.pool], others)
