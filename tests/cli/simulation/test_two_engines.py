"""What one engine shows, the other one does, too."""

from collections.abc import Mapping, Sequence

import pytest
from known_signals import spec
from simulated_service import SteadyScaler, profile, steady, workload

from legato_cli.simulation.engine import SLOTS, RunSettings
from legato_cli.simulation.scaler import LegatoScaler, Observation
from legato_cli.simulation.simulator import ENGINES
from legato_cli.simulation.workload import Arrival

ONE = {"prefill": 1, "decode": 1}


class _WishedScaler(LegatoScaler):
    """Keeps one worker of each pool, and the wishes that nobody grants."""

    def __init__(self) -> None:
        super().__init__(spec(largest=50))
        self.wishes: list[Mapping[str, int]] = []

    def sizes(self, seen: Observation) -> Mapping[str, int]:
        self.wishes.append(super().sizes(seen))
        return ONE


def _wishes(engine: str, arrivals: list[Arrival]) -> Sequence[Mapping[str, int]]:
    scaler = _WishedScaler()
    ENGINES[engine](RunSettings(spec(largest=50), workload(arrivals), profile()), scaler).run()
    return scaler.wishes


def test_prompts_that_wait_for_prefill_need_no_decode_worker_in_either():
    """80 of them are queued at the worker and have blocks where they will decode, but a handful decode at a time."""
    arrivals = [*steady(120.0, each=1.0, tokens=240), *steady(4.0, each=0.02, since=60.0, tokens=240)]
    fluid, scheduler = _wishes("fluid", arrivals), _wishes("scheduler", arrivals)
    assert max(wish["decode"] for wish in fluid) == max(wish["decode"] for wish in scheduler) == 1
    assert max(wish["prefill"] for wish in fluid) == max(wish["prefill"] for wish in scheduler)


def test_where_all_slots_are_taken_a_first_token_waits_for_one_in_both():
    """As many as a worker has slots begin at once, and all others when these have ended."""
    latest = {}
    for name, engine in ENGINES.items():
        service = spec(largest=50, routing={"whenPrefillBusy": "Wait"})
        made = engine(
            RunSettings(service, workload([Arrival(1.0, 100, 1000)] * (SLOTS + 6)), profile(kv_tokens=200_000)),
            SteadyScaler((0.0, ONE)),
        )
        found = []
        made.tally.ended = lambda request, end=made.tally.ended, found=found: (found.append(request), end(request))
        assert made.run().finished == SLOTS + 6
        times = sorted(request.ttft for request in found)
        assert times[SLOTS - 1] < 3 < 10 < times[SLOTS]
        latest[name] = times[-1]
    assert latest["fluid"] == pytest.approx(latest["scheduler"], rel=0.02)
