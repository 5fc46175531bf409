"""What a core tells of itself while nothing happens: whether every block has its owners."""

from types import SimpleNamespace

import pytest

from legato_engine.core.heartbeat import Pulse
from legato_engine.core.load_reporter import IDLE_INTERVAL, LoadReporter
from legato_engine.core.rates import Rates
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.scheduler.limits import SchedulerLimits
from legato_engine.scheduler.request import Request
from legato_engine.scheduler.scheduler import Scheduler
from legato_protocol.sampling_params import SamplingParams


class Quiet:
    """A reporter over a scheduler without requests, and its time."""

    def __init__(self) -> None:
        self.pool = BlockPool(8, EventLog("epoch"))
        scheduler = Scheduler(SchedulerLimits("unified", 4, 64), self.pool, "revision")
        self.handler = SimpleNamespace(
            scheduler=scheduler,
            idle=True,
            held=0,
            adapters=SimpleNamespace(loaded=()),
            news=False,
            draining=False,
            gateways=(1,),
            order=0,
            senders=None,
            receivers=None,
            agent=None,
        )
        self.rates = Rates()
        self.reporter = LoadReporter(self.handler, self.rates, Pulse(), max_waiting=4)  # type: ignore[arg-type]
        self.now = 0.0

    def mismatch(self) -> str:
        """What is told at the next report."""
        self.now += IDLE_INTERVAL
        status = self.reporter.status_if_due(self.now)
        assert status is not None
        return status.mismatch

    def work(self) -> None:
        """Something is computed, and everything ends."""
        self.handler.idle = False
        self.reporter.changed()
        self.mismatch()
        self.handler.idle = True


@pytest.fixture
def quiet() -> Quiet:
    return Quiet()


def test_blocks_without_an_owner_are_told_of_once_work_is_over(quiet: Quiet) -> None:
    quiet.work()
    quiet.pool.allocate(1)
    assert quiet.mismatch() == "block 0 has 1 references and 0 owners"
    assert quiet.mismatch() == "block 0 has 1 references and 0 owners"


def test_nothing_is_looked_at_while_something_changes(quiet: Quiet) -> None:
    quiet.work()
    quiet.pool.allocate(1)
    quiet.reporter.changed()
    assert quiet.mismatch() == ""
    assert quiet.mismatch() != ""


def test_nothing_is_looked_at_while_something_runs(quiet: Quiet) -> None:
    quiet.work()
    quiet.handler.idle = False
    quiet.pool.allocate(1)
    assert quiet.mismatch() == ""


def test_owners_are_looked_at_once_in_each_phase_without_work(quiet: Quiet) -> None:
    quiet.work()
    assert quiet.mismatch() == ""
    quiet.pool.allocate(1)
    assert quiet.mismatch() == ""
    quiet.work()
    assert quiet.mismatch() != ""


def test_a_mismatch_is_told_until_the_owners_agree_again(quiet: Quiet) -> None:
    quiet.work()
    blocks = quiet.pool.allocate(1)
    assert blocks is not None
    assert quiet.mismatch() != ""
    quiet.work()
    quiet.pool.release(blocks)
    assert quiet.mismatch() == ""


def test_demand_and_the_age_of_measurements_are_told(quiet: Quiet) -> None:
    quiet.rates.measured(32, 2, 0.1, now=1.0)
    quiet.pool.events.take()
    request = Request("r", 1, [1, 2, 3, 4, 5], 5, SamplingParams(max_tokens=4, seed=1), 100.0)
    quiet.handler.scheduler.add(request, 1.0)
    status = quiet.reporter.status_if_due(3.5)
    assert status is not None
    assert (status.load.pending_blocks, status.load.growth_blocks) == (2, 0)
    assert (status.load.prompts, status.load.prompt_tokens) == (1, 5)
    assert (status.load.prefill_age, status.load.decode_age) == (2.5, 2.5)
    assert (status.load.prefill_rate, status.load.prefill_cost) == (0.0, None)
