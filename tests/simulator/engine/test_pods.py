"""Workers come and go within the limits of the manifest."""

import dataclasses
import itertools

from budget import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from known_signals import spec
from simulated_service import KIND

from legato_operator.api import pool_sizes, roles
from legato_simulator.engine.fluid.simulated_worker import SimulatedWorker
from legato_simulator.engine.pods import Pods
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.workload.workload import Arrival

SLOW_START = dataclasses.replace(KIND, start=7.0)
NUMBERS = itertools.count()
GPU = {"resources": {"limits": {"nvidia.com/gpu": 1}}}


def _pods(budget=None):
    bounds = {"prefill": {"min": 0, "max": 5}, "decode": {"min": 1, "max": 5}}
    scaling = {**bounds, "gpuBudget": budget, "maxPrefillPerDecode": 2}
    service = spec(scaling=scaling, prefill=GPU, decode=GPU, drain={"deadline": "10s"})
    return service, Pods(service, dict.fromkeys(("prefill", "decode"), SLOW_START), SimulatedWorker)


def _staying(pods, pool):
    return [worker for worker in pods.of_pool(pool) if worker.draining_since is None]


def _occupy(*workers):
    for worker in workers:
        worker.compute(SimulatedRequest(next(NUMBERS), Arrival(0.0, 100, 1), 100, 100), 0.0)


def _change(pods, decode, *times):
    """The number of workers deleted at each of these times, once another number of decode workers is desired."""
    pods.set_desired({"decode": decode})
    return [len(pods.reconcile(now)) for now in times]


def _grown(decode):
    """Pods with this number of ready decode workers, at 10 s."""
    _, pods = _pods()
    _change(pods, decode, 2.0, 10.0)
    return pods, pods.of_pool("decode")


def test_a_pool_begins_with_its_initial_size_ready_and_stays_within_its_bounds():
    _, pods = _pods()
    assert pods.ready(0.0) == {"decode": 1, "prefill": 1}
    pods.set_desired({"prefill": 9, "decode": 0})
    assert pods.desired == {"prefill": 5, "decode": 1}


def test_workers_that_start_go_immediately_and_the_idlest_ready_one_drains():
    pods, (first, second, third) = _grown(3)
    _occupy(first, third)
    _change(pods, 4, 12.0)
    pods.set_desired({"decode": 2})
    assert [worker.created for worker in pods.reconcile(14.0)] == [12.0]
    assert _staying(pods, "decode") == [first, third]
    assert pods.reconcile(16.0) == [second]


def test_the_busiest_draining_worker_is_recalled_and_nothing_is_created():
    pods, decoders = _grown(3)
    _occupy(*decoders, decoders[2])
    _change(pods, 1, 12.0)
    _change(pods, 2, 14.0)
    staying = _staying(pods, "decode")
    assert (len(staying), decoders[2] in staying) == (2, True)
    assert set(staying) <= set(decoders)


SIZES = st.fixed_dictionaries({"prefill": st.integers(0, 7), "decode": st.integers(0, 7)})


@settings(max_examples=times(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(SIZES, st.integers(1, 4), st.booleans()), max_size=12), st.sampled_from((2, 4, 6, None)))
def test_budget_ratio_and_minima_hold_at_every_poll(steps, budget):
    """Whatever is desired, and however long draining workers hold their GPUs."""
    (service, pods), now = _pods(budget), 0.0
    for sizes, looks, busy in steps:
        pods.set_desired(sizes)
        for _ in range(looks):
            now += 2.0
            before = set(pods.all)
            if busy:
                _occupy(*pods.all)
            pods.reconcile(now)
            staying = {pool: len(_staying(pods, pool)) for pool in roles.with_pool(service)}
            assert budget is None or pods.gpus <= budget
            assert 1 <= staying["decode"] <= 5
            assert staying["prefill"] <= 5
            for worker in set(pods.all) - before:
                others = staying[pool_sizes.other(worker.pool)]
                assert pool_sizes.keeps_ratio(service, worker.pool, staying[worker.pool], others)
