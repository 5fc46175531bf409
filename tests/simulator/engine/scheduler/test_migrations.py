"""Sequences that hot decode workers hand on to others, in virtual time, and their tokens."""

import functools
import math
from collections import defaultdict
from typing import NamedTuple

import pytest
from known_signals import spec
from simulated_service import SteadyScaler, profile, workload

from legato_simulator.engine.engine import RunSettings
from legato_simulator.engine.scheduler.engine import SchedulerEngine
from legato_simulator.workload.workload import Arrival

SLOW_ROWS = {"per_row": 0.02}  # five sequences take 110 ms, more than the default of `slo.tpot`
UNIFIED = {"scaling": {"prefill": {"max": 0}, "decode": {"min": 1, "max": 9}}}


class _Migration(NamedTuple):
    """A request that has begun; `uncomputed` of its known tokens remain to be computed."""

    id: str
    source: str
    uncomputed: int


class _Watched(SchedulerEngine):
    """Notes when each migration began and ended, and the places of the tokens that steps made."""

    def __init__(self, *given):
        self.made = defaultdict(list)  # by request
        self.begun, self.moved = [], []  # migrations, and when which request was moved
        super().__init__(*given)
        self._migrate, self._handoffs.migrate = self._handoffs.migrate, self._begin

    def _create(self, *given):
        worker = super()._create(*given)
        end_step = worker.end_step

        def noted(now):
            result = end_step(now)
            for emission in result.emissions:
                places = range(emission.index, emission.index + len(emission.sampled))
                self.made[emission.request.id] += places
            return result

        worker.end_step = noted
        return worker

    def _begin(self, source, running, target, here, failed):
        self._migrate(source, running, target, here, failed)
        self.begun.append(_Migration(here.id, source.name, running.remaining))

    def _on_handoff(self, handoff, emissions):
        if handoff.outgoing.migration:
            self.moved.append((self._time.now, handoff.incoming.request.id))
        super()._on_handoff(handoff, emissions)


def _serve(arrivals, *sizes, service=None, rate=math.inf, **step):
    """The first of `sizes` is for the beginning; new workers take two seconds to serve.

    Every request has all of its tokens, none was made twice, and nothing is left anywhere."""
    made = _Watched(
        RunSettings(
            spec(largest=50, **(service or {})),
            workload(list(arrivals)),
            profile(step.pop("kv_tokens", 64_000), 2.0, **{**SLOW_ROWS, **step}),
            handoff_rate=rate,
        ),
        SteadyScaler(*((since, {"prefill": 1, "decode": decode}) for since, decode in sizes)),
    )
    result = made.run()
    assert result.finished == result.offered
    for arrival, (_, places) in zip(made._run.workload.arrivals, sorted(made.made.items()), strict=True):
        first = 1 if made._spec.disaggregated else 0  # which the prefill worker makes, and the decode worker sends
        assert sorted(places) == list(range(first, arrival.output))
    for worker in made.pods.all:
        worker.scheduler.check_integrity()
        assert worker.idle
        assert worker.scheduler.idle
        assert worker.blocks.counts().used == 0
    return made, result


def _burst(count=8, output=400):
    """All of it goes to the only decode worker that serves yet."""
    return [Arrival(0.1 * number, 100, output) for number in range(count)]


@functools.cache
def _burst_served(rate=math.inf, unified=False, tpot="100ms"):
    """The burst, while a second decode worker serves after two seconds."""
    return _serve(_burst(), (0, 1), (2, 2), service={**(UNIFIED if unified else {}), "slo": {"tpot": tpot}}, rate=rate)


@pytest.mark.parametrize("unified", [False, True], ids=["decode", "unified"])
@pytest.mark.parametrize("rate", [math.inf, 300.0], ids=["immediately", "slowly"])
def test_a_hot_worker_hands_sequences_on_to_a_roomy_one(unified, rate):
    made, result = _burst_served(rate, unified)
    assert len(made.moved) >= 3
    assert {migration.source for migration in made.begun} == {"decode-0"}
    cold, unmoved = _burst_served(unified=unified, tpot="1s")
    assert not cold.moved
    assert result.tpot.p50 < 0.75 * unmoved.tpot.p50


PINNED = {"slo": {"tpot": "1s"}, "gateway": {"image": "legato/gateway:old"}}


@pytest.mark.parametrize(
    ("burst", "grown", "given", "moves"),
    [
        pytest.param(_burst(12, 60), 0, {}, False, id="sequences that are nearly done"),
        # Steps of two are too long, and either of them would be as slow with nobody as the other one then is.
        pytest.param(_burst(2), 0, {"per_row": 0.06}, False, id="a move that would relieve nobody"),
        # Steps take up to 170 ms.
        pytest.param(_burst(), 2, {"service": PINNED}, False, id="a pinned gateway"),
        pytest.param(_burst(), 2, {"service": {**PINNED, **UNIFIED}}, True, id="a pinned gateway of unified workers"),
    ],
)
def test_where_nothing_moves(burst, grown, given, moves):
    """A pinned gateway whose decode workers do not help goes by the default."""
    made, _ = _serve(burst, (0, 1), (grown, 2), **given)
    assert bool(made.begun) == bool(made.moved) == moves


def test_what_leaves_a_draining_worker_may_wait_for_room_or_be_preempted_meanwhile():
    """The worker that stays has blocks for it, but expects to need them for what runs there."""
    arrivals = [Arrival(0.3 * number, 100, 300) for number in range(40)]
    made, _ = _serve(arrivals, (0, 2), (20, 1), (40, 2), (60, 1), kv_tokens=2500)
    assert len(made.begun) > len(made.moved)
