"""The loops: one per service, woken and timed, and what a pass that fails means for the others."""

import asyncio
import contextlib

import pytest

from legato_operator.cluster import Ref
from legato_operator.controller import LONGEST_GATHER, Controller, Retries
from legato_operator.errors import Invalid, Unavailable
from legato_operator.metrics.operator_metrics import OperatorMetrics

pytestmark = pytest.mark.virtual_time
GOOD = Ref("InferenceService", "default", "good")
BAD = Ref("InferenceService", "default", "bad")
QUICK = Retries(first=0.001, longest=0.01)


class Passes:
    """A reconciler whose passes take some seconds, and fail or find a service gone; remembers what it was asked."""

    def __init__(self, seconds=0, again=3600.0, **faults):
        self.seconds, self.again = seconds, again
        self.faults = faults
        self.done = []
        self.woken = []
        self.times = []  # of the begin and the end of each pass
        self.told = []
        self.gone = set()
        self.hold = None

    async def reconcile(self, ref, woken=True):
        began = asyncio.get_running_loop().time()
        if self.hold is not None:
            await self.hold.wait()
        if self.seconds:
            await asyncio.sleep(self.seconds)
        self.times.append((began, asyncio.get_running_loop().time()))
        self.done.append(ref.name)
        self.woken.append(woken)
        if ref.name in self.faults:
            raise self.faults[ref.name]
        return None if ref.name in self.gone else self.again

    async def record_failure(self, ref, error):
        self.told.append((ref.name, str(error)))

    async def until(self, condition):
        async with asyncio.timeout(90):
            while not condition():  # noqa: ASYNC110 - the reconciler's own memory
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def _running(passes, retries=QUICK, **given):
    controller = Controller(passes, OperatorMetrics(), retries, time=asyncio.get_running_loop().time, **given)
    task = asyncio.create_task(controller.run())
    await asyncio.sleep(0)
    try:
        yield controller, task
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_failing_service_is_tried_again_told_and_stops_no_other():
    passes = Passes(bad=KeyError("conditions"))
    async with _running(passes) as (controller, task):
        controller.wake(BAD)
        await passes.until(lambda: passes.done.count("bad") > 3)
        controller.wake(GOOD)
        await passes.until(lambda: "good" in passes.done)
        assert set(passes.told) == {("bad", "'conditions'")}
        del passes.faults["bad"]
        before = passes.done.count("bad")
        await passes.until(lambda: passes.done.count("bad") > before)
        assert not task.done()


async def test_service_that_was_edited_is_looked_at_at_once_and_other_wakes_wait_their_time():
    passes = Passes(bad=KeyError("conditions"))
    async with _running(passes, retries=Retries(first=3600.0, longest=3600.0)) as (controller, _task):
        controller.wake(BAD, 1)
        await passes.until(lambda: passes.told)
        for _ in range(20):
            controller.wake(BAD, 1)
            await asyncio.sleep(0.001)
        assert passes.done == ["bad"]
        controller.wake(BAD, 2)
        await passes.until(lambda: len(passes.done) == 2)


async def test_cluster_that_cannot_be_asked_is_asked_again_and_told_nothing():
    passes = Passes(bad=Unavailable("no route"))
    async with _running(passes) as (controller, _task):
        controller.wake(BAD)
        await passes.until(lambda: passes.done.count("bad") > 3)
        assert not passes.told


async def test_without_retries_a_fault_ends_the_run():
    passes = Passes(bad=KeyError("conditions"))
    async with _running(passes, retries=None) as (controller, task):
        controller.wake(BAD)
        with pytest.raises(ExceptionGroup):
            await task


async def test_what_happens_during_a_pass_is_looked_at_after_it():
    passes = Passes()
    passes.hold = asyncio.Event()
    async with _running(passes) as (controller, _task):
        controller.wake(GOOD)
        await passes.until(lambda: controller.longest_pass() > 0)
        for _ in range(5):
            controller.wake(GOOD)
        passes.hold.set()
        await passes.until(lambda: len(passes.done) == 2)
        assert controller.longest_pass() == 0


async def test_poll_makes_a_pass_due_that_is_not_woken():
    """Without gathering; a wake during the same wait counts."""
    passes = Passes(again=100.0)
    async with _running(passes, gather=10.0) as (controller, _):
        controller.poll(GOOD)  # before its first pass: it has no loop yet
        controller.wake(GOOD)
        await asyncio.sleep(1.0)
        controller.poll(GOOD)
        await asyncio.sleep(1.0)
        controller.poll(GOOD)
        controller.wake(GOOD)
        await asyncio.sleep(50.0)
    assert passes.woken == [True, False, True]


async def test_wakes_that_go_on_are_gathered_for_longer_and_after_a_rest_as_at_first():
    passes = Passes(again=5.0)
    async with _running(passes, gather=0.1) as (controller, _):
        for _ in range(100):
            controller.wake(GOOD)
            await asyncio.sleep(0.1)
        assert 10 < len(passes.done) < 17
        await asyncio.sleep(10)
        before = len(passes.done)
        for _ in range(5):
            controller.wake(GOOD)
            await asyncio.sleep(0.1)
        assert len(passes.done) >= before + 2


async def test_an_edit_is_not_gathered():
    passes = Passes()
    async with _running(passes, gather=3600.0) as (controller, _):
        controller.wake(GOOD)
        await passes.until(lambda: len(passes.done) == 1)
        controller.wake(GOOD)
        await asyncio.sleep(0)
        controller.wake(GOOD, generation=2)
        await passes.until(lambda: len(passes.done) == 2)


async def test_pause_after_a_long_pass_is_bounded():
    """Else, where a hundred services move, each waits for as long as the operator is busy with all others."""
    passes = Passes(seconds=60)
    async with _running(passes, gather=0.001) as (controller, _):
        controller.wake(GOOD)
        await asyncio.sleep(60.1)
        controller.wake(GOOD)
        await asyncio.sleep(180)
        (_, ended), (again, _) = passes.times
        assert again - ended <= 0.2 + LONGEST_GATHER


class Steps(Passes):
    """Every service takes five passes of a second, as if pods became ready between them."""

    def __init__(self):
        super().__init__(seconds=1)
        self.at_once = self.most = 0
        self.controller = None

    async def reconcile(self, ref, woken=True):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        again = await super().reconcile(ref, woken)
        self.at_once -= 1
        if self.done.count(ref.name) < 5:
            self.controller.wake(ref)
        return again


async def test_passes_are_bounded_and_services_that_have_begun_come_first():
    """Half of many services are ready long before the last, instead of all together at the end."""
    passes, many = Steps(), 40
    async with _running(passes, most_passes=2) as (controller, _):
        passes.controller = controller
        for number in range(many):
            controller.wake(Ref("InferenceService", "default", f"s{number}"))
        await asyncio.sleep(1000)
        finished = [
            passes.times[at][1] for at, name in enumerate(passes.done) if passes.done[: at + 1].count(name) == 5
        ]
        assert (passes.most, len(finished)) == (2, many)
        assert finished[many // 2] < 0.75 * finished[-1]


async def test_service_that_is_made_again_during_its_last_pass_or_later_is_looked_at():
    passes = Passes()
    passes.gone.add("good")
    passes.hold = asyncio.Event()
    async with _running(passes) as (controller, _task):
        controller.wake(GOOD)
        await passes.until(lambda: controller.longest_pass() > 0)
        controller.wake(GOOD)
        passes.hold.set()
        await passes.until(lambda: passes.done == ["good"] * 2)
        await asyncio.sleep(0)
        controller.wake(GOOD)
        await passes.until(lambda: passes.done == ["good"] * 3)


@pytest.mark.parametrize("turns", range(4))
async def test_cancel_that_comes_with_a_wake_ends_the_run(turns):
    """The cancel comes this many iterations of the loop after the wake."""
    passes = Passes()
    async with _running(passes) as (controller, task):
        controller.wake(GOOD)
        await passes.until(lambda: len(passes.done) == 1)
        for _ in range(9):
            await asyncio.sleep(0)  # now it waits for the next wake
        controller.wake(GOOD)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        assert await asyncio.wait((task,), timeout=60) == ({task}, set())


@pytest.mark.parametrize("failures", [1, 2, 3, 10, 10_000])
def test_time_between_tries_grows_and_is_bounded(failures):
    retries = Retries(first=0.5, longest=30.0)
    wanted = min(30.0, 0.5 * 2.0 ** min(failures - 1, 30))
    assert all(wanted / 2 <= retries.after(failures) <= wanted for _ in range(20))


@pytest.mark.parametrize(
    ("fault", "traced"), [(Invalid("422: Pod demo is invalid"), False), (KeyError("conditions"), True)]
)
async def test_refusal_of_the_cluster_is_a_line_of_the_log_and_a_fault_a_traceback(caplog, fault, traced):
    passes = Passes(bad=fault)
    async with _running(passes) as (controller, _task):
        controller.wake(BAD)
        await passes.until(lambda: passes.told)
    first = caplog.records[0]
    assert str(fault) in first.getMessage()
    assert bool(first.exc_info) is traced
