"""Reports of a core while nothing happens: every block has its owners, or a mismatch is named."""

from types import SimpleNamespace

import pytest

from legato_engine.core.reporting.heartbeat import Pulse
from legato_engine.core.reporting.load_reporter import IDLE_INTERVAL, LoadReporter
from legato_engine.core.reporting.rates import Rates
from legato_engine.core.reporting.tier_times import TierTimes
from legato_engine.core.slices.slices import OwnCores
from legato_engine.kvcache.block_pool import BlockPool
from legato_engine.kvcache.events import EventLog
from legato_engine.scheduler.requests.limits import SchedulerLimits
from legato_engine.scheduler.requests.request import Request
from legato_engine.scheduler.results import StepResult
from legato_engine.scheduler.scheduler import Scheduler
from legato_protocol.sampling.parameters import SamplingParams


class Sharing(OwnCores):
    shared = True


class Quiet:
    """A reporter over a scheduler without requests, and its time."""

    def __init__(self):
        self.pool = BlockPool(8, EventLog("epoch"))
        scheduler = Scheduler(SchedulerLimits("unified", 4, 64), self.pool, "revision")
        self.handler = SimpleNamespace(
            scheduler=scheduler,
            idle=True,
            pending=0,
            adapters=SimpleNamespace(loaded=()),
            news=False,
            draining=False,
            gateways=(1,),
            order=0,
            handoffs=None,
        )
        self.rates = Rates()
        self.reporter = LoadReporter(self.handler, self.rates, TierTimes(), Pulse(), Sharing(), max_waiting=4)
        self.now = 0.0

    def report(self):
        self.now += IDLE_INTERVAL
        return self.reporter.status_if_due(self.now).mismatch

    def work(self):
        self.run()
        self.change()
        self.report()
        self.handler.idle = True

    def run(self):
        self.handler.idle = False

    def change(self):
        self.reporter.mark_changed()

    def lose(self):
        self.pool.allocate(1)

    def find(self):
        self.pool.release([0])


@pytest.fixture
def quiet():
    return Quiet()


LOST = "block 0 has 1 references and 0 owners"


@pytest.mark.parametrize(
    ("history", "reports"),
    [
        ("work lose report report", [LOST, LOST]),
        ("work lose change report report", ["", LOST]),
        ("work run lose report", [""]),
        ("work report lose report work report", ["", "", LOST]),
        ("work lose report work find report", [LOST, ""]),
    ],
    ids=["lost block", "nothing is checked during a change", "nor during work", "once after work", "until it is found"],
)
def test_blocks_without_an_owner_are_reported_once_work_is_over(quiet, history, reports):
    results = [(name, getattr(quiet, name)()) for name in history.split()]
    assert [mismatch for name, mismatch in results if name == "report"] == reports


def test_demand_and_the_age_of_measurements_are_reported(quiet):
    quiet.rates.measure(32, 2, 0.1, now=1.0)
    quiet.pool.events.take()
    request = Request("r", 1, [1, 2, 3, 4, 5], 5, SamplingParams(max_tokens=12, seed=1), 100.0)
    quiet.handler.scheduler.add(request, 1.0)
    load = quiet.reporter.status_if_due(3.5).load
    assert (load.pending_blocks, load.growth_blocks, load.next_growth_blocks) == (2, 2, 2)
    assert (load.prompts, load.prompt_tokens) == (1, 5)
    assert (load.prefill_age, load.decode_age) == (2.5, 2.5)
    assert (load.prefill_rate, load.prefill_cost, load.shares_cores) == (0.0, None, True)


def test_steps_are_counted_by_the_sequences_that_they_decode(quiet):
    for rows in (0, 1, 3, 4, 5000):
        quiet.reporter.count_step(StepResult(decode_rows=rows))
    totals = quiet.reporter.status_if_due(IDLE_INTERVAL).totals
    assert (totals.decode_rows, totals.decode_batches) == (5008, (1, 0, 2, *[0] * 8, 1))


def test_the_time_of_a_step_is_that_of_steps_that_decoded_and_were_not_cold():
    rates, times = Rates(), []
    for now, step in enumerate([(0, 1, 9.0), (0, 1, 9.0), (64, 0, 5.0), (0, 1, 0.1), (0, 1, 0.2)]):
        rates.measure(*step, float(now))
        times.append(rates.step_time)
    assert times == [0.0, 0.0, 0.0, pytest.approx(0.1), pytest.approx(0.11)]
