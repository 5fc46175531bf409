"""Times as metrics show them: in virtual time by value, and over real streams by count."""

import pytest
from relay_simulation import VirtualTime

from legato_gateway.metrics import Metrics
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.latency import LatencyRecorder
from legato_gateway.relay.timing import RequestTiming
from legato_protocol.stream import Begun, HandoffReport, TokenItem


class Owner:
    def pause(self, generation, on):
        return

    def leave(self, generation):
        return


class Timed:
    """A request that came at 0, and its recorder. `at` lets something come at a time."""

    def __init__(self, lab, **overrides):
        self.clock, self.metrics = VirtualTime(), Metrics()
        self.recorder = LatencyRecorder(self.metrics, self.clock)
        self.generation = RunningGeneration(lab.request(**overrides), lab.vocabulary, Owner(), 1000)
        self.generation.timing = RequestTiming(0.0)
        self.generation.timing.placed(1, True)

    def at(self, seconds):
        self.clock.now = seconds
        return self

    def token(self, choice=0, finish=None, cached=0):
        into = self.generation.choices[choice]
        known = len(into.tokens)
        self.generation.take(into, TokenItem("r", 1, choice, known, (1,), finish=finish, cached_tokens=cached))
        self.recorder.token(self.generation, into, known)

    def sums(self, *names):
        return [self.value(f"{name}_sum") for name in names]

    def value(self, name):
        return self.metrics.registry.get_sample_value(f"legato_gateway_{name}")


def report(seconds, attempt=1):
    return HandoffReport("r", attempt, 1, "p0", 1, 0, 1024, 9.0, seconds, "memory")


@pytest.fixture
def timed(lab):
    return Timed(lab)


def test_time_to_first_token_and_its_parts(timed):
    timed.at(2.0).recorder.begun(timed.generation, Begun("r", 1))
    timed.at(5.0).token(cached=64)
    timed.recorder.handed_off(timed.generation, report(1.0))
    parts = [f"request_{part}_time_seconds" for part in ("queue", "prefill", "handoff")]
    assert timed.sums("time_to_first_token_seconds", *parts) == [5.0, 2.0, 2.0, 1.0]
    assert timed.generation.route.seconds == {"first_token": 5.0, "queue": 2.0, "prefill": 2.0, "handoff": 1.0}
    assert (timed.value("request_prompt_tokens_sum"), timed.value("prompt_tokens_cached_total")) == (100, 64)


def test_tokens_after_the_first(timed):
    for second in (1.0, 4.0, 5.0, 7.0):
        timed.at(second).token()
    assert timed.sums("inter_token_latency_seconds", "request_first_decode_time_seconds") == [6.0, 3.0]
    assert timed.value("inter_token_latency_seconds_count") == 3
    assert timed.value("time_to_first_token_seconds_count") == 1


def test_each_choice_has_its_own_tokens(lab):
    timed = Timed(lab, choices=2)
    for second, choice in ((1.0, 0), (3.0, 1), (4.0, 0), (8.0, 1)):
        timed.at(second).token(choice)
    assert timed.sums("time_to_first_token_seconds", "inter_token_latency_seconds") == [1.0, 8.0]


def test_an_end_that_is_whole_is_timed(timed):
    timed.at(1.0).token()
    timed.at(2.0).token()
    timed.at(4.0).token(finish="stop")
    timed.recorder.ended(timed.generation)
    assert timed.sums("e2e_request_latency_seconds", "request_time_per_output_token_seconds") == [4.0, 1.5]
    assert timed.generation.route.seconds["total"] == 4.0


@pytest.mark.parametrize(("finish", "whole"), [(None, 0), ("length", 1)])
def test_an_answer_that_was_cut_off_is_not_and_a_single_token_has_no_time_per_token(timed, finish, whole):
    timed.at(1.0).token(finish=finish)
    timed.recorder.ended(timed.generation)
    assert timed.value("request_time_per_output_token_seconds_count") == 0
    assert timed.value("e2e_request_latency_seconds_count") == whole


def test_the_time_for_which_a_client_does_not_read_is_its_own(timed):
    timed.at(1.0).token()
    timed.at(2.0).recorder.paused(timed.generation)
    timed.at(2.5).token()  # was on its way
    timed.at(60.0).recorder.resumed(timed.generation)
    timed.at(61.0).token(finish="length")
    timed.recorder.ended(timed.generation)
    assert timed.sums("inter_token_latency_seconds", "request_time_per_output_token_seconds") == [2.5, 1.25]


@pytest.mark.parametrize(("workers", "handoffs"), [("pools", 1), ("unified", 0)])
async def test_a_stream_is_timed_from_end_to_end(lab, workers, handoffs):
    async with lab.running(getattr(lab, workers)()) as gateway:
        await gateway.submit(elapsed=100.0).read()
        counts = {
            "time_to_first_token_seconds": 1,
            "request_queue_time_seconds": 1,
            "request_prefill_time_seconds": 1,
            "request_handoff_time_seconds": handoffs,
            "request_first_decode_time_seconds": 1,
            "inter_token_latency_seconds": 19,
            "request_time_per_output_token_seconds": 1,
            "e2e_request_latency_seconds": 1,
            "request_prompt_tokens": 1,
        }
        assert {name: gateway.count(f"{name}_count") for name in counts} == counts
        assert gateway.count("output_tokens_total") == 20
        parts = [gateway.count(f"request_{part}_time_seconds_sum") for part in ("queue", "prefill", "handoff")]
        whole = gateway.count("time_to_first_token_seconds_sum")
        assert sum(parts) == pytest.approx(whole)
        assert 100 <= whole <= gateway.count("e2e_request_latency_seconds_sum")


async def test_a_client_that_pauses_is_told_to_the_recorder(lab):
    """Its buffer is full before it reads: the answer's tokens came while it did not."""
    async with lab.running(lab.unified(1), buffer_tokens=4) as gateway:
        reader = gateway.submit()
        await gateway.until(lambda: reader.generation.paused)
        since = reader.generation.paused_at
        assert since > 0
        reader.generation.paused_at = since - 1000  # it has not read for long
        choice = reader.generation.choices[0]
        choice.last_at = since - 1000
        await reader.read()
        assert gateway.count("inter_token_latency_seconds_sum") < 100
