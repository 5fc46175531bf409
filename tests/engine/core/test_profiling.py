"""Profiles of the core's next steps: their first and last step, and their outcomes."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import until

from legato_engine.core.frames import ProfileOrder
from legato_engine.core.profiling import Profiling
from legato_engine.errors import ProfileFailed
from legato_engine.ranges import Ranges
from legato_protocol.wire.stream import Generate


class RecordedCalls:
    """Implements `StepProfiler`. `steps` counts the steps that ran between its start and stop."""

    def __init__(self, fails=""):
        self.ranges, self.calls, self.fails = Ranges(), [], fails
        self.runner = None
        self.steps = 0

    def start(self):
        self._called("start")
        self.steps = -self.runner.calls

    def stop(self):
        self.steps += self.runner.calls
        self._called("stop")

    def write(self, path):
        self._called(f"write {path}")
        assert threading.current_thread().name == "profile", "steps would wait for it"

    def _called(self, call):
        self.calls.append(call)
        if self.fails and call.startswith(self.fails):
            raise ProfileFailed(f"no {self.fails}")


@pytest.fixture
def profiled(world, monkeypatch):
    """Makes a worker whose steps are counted, and its profiler."""

    def make(fails="", **options):
        profiler, runner = RecordedCalls(fails), world.make_runner()
        profiler.runner, runner.calls, step = runner, 0, runner.step

        def counted(*batches):
            runner.calls += 1
            return step(*batches)

        monkeypatch.setattr(runner, "step", counted)
        return world.worker("u", runner=runner, profiler=profiler, **options), profiler

    return make


async def _outcome(world, worker):
    await until(lambda: world.run(1) or worker.profiled)
    return worker.profiled


@pytest.mark.parametrize("turns", [0, 2])  # iterations that a step takes
async def test_exactly_the_next_steps_are_recorded_while_they_go_on(world, profiled, turns):
    worker, profiler = profiled(step_turns=lambda: turns)
    world.generate(worker, max_tokens=80, turns=5)
    worker.send(profile=ProfileOrder("/a/trace", 3, 60.0))
    assert await _outcome(world, worker) == [""]
    assert (profiler.calls, profiler.steps) == (["start", "stop", f"write {Path('/a/trace')}"], 3)
    worker.send(profile=ProfileOrder("/b", 1, 60.0))
    await until(lambda: world.run(1) or len(worker.profiled) == 2)
    assert profiler.steps == 1
    world.run(300)
    world.check_done()


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [(0, "none of 5 steps were computed within 9 s"), (3, "3 of 5 steps were computed within 9 s")],
)
async def test_steps_that_do_not_come_are_not_waited_for(world, profiled, tokens, reason):
    worker, profiler = profiled()
    worker.send(profile=ProfileOrder("/a", 5, 9.0))
    if tokens:
        worker.send(Generate("r", 1, world.sequence(world.prompt[:4], max_tokens=tokens)))
    world.run(9)
    assert worker.profiled == []
    assert await _outcome(world, worker) == [reason]
    assert profiler.calls == ["start", "stop"]
    world.generate(worker, id="later")
    assert profiler.calls == ["start", "stop"]


@pytest.mark.parametrize(
    ("fails", "calls"), [("start", ["start"]), ("stop", ["start", "stop"]), ("write", ["start", "stop", "write /a"])]
)
async def test_a_profiler_that_fails_is_reported_once_and_stops_no_step(world, profiled, fails, calls):
    worker, profiler = profiled(fails)
    worker.send(profile=ProfileOrder("/a", 1, 9.0))
    world.generate(worker)
    assert await _outcome(world, worker) == [f"no {fails}"]
    assert profiler.calls == calls
    world.check_done()
    assert worker.profiled == [f"no {fails}"]


async def test_a_paced_worker_records_nothing(world):
    worker = world.worker("u")
    worker.send(profile=ProfileOrder("/a", 1, 9.0))
    assert await _outcome(world, worker) == ["a paced worker computes nothing that could be recorded"]


@pytest.mark.parametrize(("fails", "calls"), [("start", ["start"]), ("", ["start", "stop"])])
def test_a_slow_compute_thread_stops_a_profile_once_and_only_if_it_started(fails, calls):
    profiler, work, now = RecordedCalls(fails), [], [0.0]
    profiler.runner = SimpleNamespace(calls=0)
    profiling = Profiling(SimpleNamespace(run=work.append), profiler, lambda: now[0])
    profiling.begin(ProfileOrder("/a", 2, 9.0), 0)
    now[0] = 9.0
    for _ in range(2):
        profiling.count_step()
        profiling.expire()
    for each in work:
        each()
    outcome = profiling.take()
    assert (outcome.reason, profiler.calls) == (
        f"no {fails}" if fails else "1 of 2 steps were computed within 9 s",
        calls,
    )
    assert profiling.take() is None
