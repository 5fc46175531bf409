"""Times in metrics and routes, in virtual time."""

from unittest.mock import Mock

import pytest
from relay_script import count, started
from relay_simulation import VirtualTime

from legato_gateway.metrics.gateway_metrics import Metrics
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.records.latency import LatencyRecorder
from legato_gateway.relay.records.timing import RequestTiming
from legato_protocol.wire.stream import HandoffReport, Started, TokenItem


class Timed:
    """A request that came at 0, and its recorder. `at` lets something come at a time."""

    def __init__(self, lab, **overrides):
        self.clock, self.metrics = VirtualTime(), Metrics()
        self.recorder = LatencyRecorder(self.metrics, self.clock)
        self.generation = RunningGeneration(lab.request(**overrides), lab.vocabulary, Mock(), 1000)
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


@pytest.fixture
def timed(lab):
    return Timed(lab)


def test_time_to_first_token_and_its_parts(timed):
    timed.at(2.0).recorder.started(timed.generation, Started("r", 1))
    timed.at(5.0).token(cached=64)
    timed.recorder.handed_off(timed.generation, HandoffReport("r", 1, 1, "p0", 1, 0, 1024, 9.0, 1.0, "memory"))
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


@pytest.mark.parametrize(
    ("tokens", "finish", "counts", "sums"),
    [
        pytest.param((1.0, 2.0, 4.0), "stop", (1, 1), [4.0, 1.5], id="whole"),
        pytest.param((4.0,), None, (0, 0), [0.0, 0.0], id="cut off"),
        pytest.param((4.0,), "length", (1, 0), [4.0, 0.0], id="a single token has no time per token"),
    ],
)
def test_only_a_whole_answer_is_timed(timed, tokens, finish, counts, sums):
    for second in tokens[:-1]:
        timed.at(second).token()
    timed.at(tokens[-1]).token(finish=finish)
    timed.recorder.ended(timed.generation)
    names = ("e2e_request_latency_seconds", "request_time_per_output_token_seconds")
    assert tuple(timed.value(f"{name}_count") for name in names) == counts
    assert timed.sums(*names) == sums
    assert timed.generation.route.seconds["total"] == 4.0


def test_the_time_for_which_a_client_does_not_read_is_its_own(timed):
    timed.at(1.0).token()
    timed.at(2.0).recorder.paused(timed.generation)
    timed.at(2.5).token()  # was on its way
    timed.at(60.0).recorder.resumed(timed.generation)
    timed.at(61.0).token(finish="length")
    timed.recorder.ended(timed.generation)
    seconds = {"first_token": 1.0, "decode": 2.0, "stream": 58.0, "total": 61.0, "tpot": 1.25}
    assert timed.generation.route.seconds == seconds
    assert timed.sums("inter_token_latency_seconds", "request_time_per_output_token_seconds") == [2.5, 1.25]


@pytest.mark.parametrize("roles", ["pd", "u"])
def test_a_request_is_timed_from_end_to_end(lab, roles):
    before = [count(name) for name in ("e2e_request_latency_seconds_count", "output_tokens_total")]
    run, generation, _ = started(lab, *roles, request={"max_tokens": 20, "elapsed": 100.0}, slow_client="Pause")
    run.generations.remove(generation)
    run.until(lambda: generation.paused)
    run.time.advance(1000.0)
    run.generations.append(generation)
    assert run.end(generation) is None
    seconds = generation.route.seconds
    parts = ["queue", "prefill", "handoff"][: len(roles) + 1]
    assert sum(seconds[part] for part in parts) == pytest.approx(seconds["first_token"])
    assert ("handoff" in seconds) == ("handoff" in parts)
    assert 100 <= seconds["first_token"] < 101
    assert seconds["decode"] < 100
    assert seconds["stream"] >= 1000
    assert seconds["total"] >= 1100
    after = [count(name) for name in ("e2e_request_latency_seconds_count", "output_tokens_total")]
    assert [now - was for now, was in zip(after, before, strict=True)] == [1, 20]
