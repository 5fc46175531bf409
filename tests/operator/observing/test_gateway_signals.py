"""Gateways' reports become the autoscaler's input: each worker once, no traffic is zero, no answer is missing."""

import asyncio

import pytest
from msgspec.structs import replace as replace_struct
from planned import report

from legato_operator.api import parsing
from legato_operator.autoscaler.signals import Blocks, DecodeCost, PromptLengths
from legato_operator.observing.gateway_signals import GatewaySignalSource
from legato_operator.observing.observe import ask_gateways
from legato_operator.observing.observed import Observed, Pod
from legato_protocol.wire.demand import LengthBucket, ReportedLoad
from legato_protocol.wire.load import DecodeCoefficients, Load, PrefillCoefficients

LOAD = Load(
    queue_tokens=700, waiting=3, running=5, free_blocks=10, cached_blocks=20, used_blocks=60, quarantined_blocks=1,
    parked_tokens=300, granted_blocks=6, pending_blocks=7, growth_blocks=8, slots=64, decoding=4, context_tokens=900,
    prompts=2, prompt_tokens=400, prefill_cost=PrefillCoefficients(0.0512, 1e-4, 1e-8, 512, 256.0),
    decode_cost=DecodeCoefficients(0.01, 1e-3, 1e-7),
)  # fmt: skip


def pod(name="gateway-0", pool="gateway", **fields):
    known = {"address": f"{name}:8082", "age": 100.0, "start_seconds": 7.0, **fields}
    return Pod(name, f"uid-{name}", pool, "r", "0", **{"ready": True, "leaving": False, **known})


def told(requests=0, name="g", **fields):
    arrivals = (LengthBucket(64, requests, 100 * requests),) if requests else ()
    return report(name, arrivals=arrivals, **fields)


def load(worker="decode-0", age=0.5, load=LOAD):
    return ReportedLoad(worker, "epoch", "decode", 32, age, load)


class Scripted:
    """Gateways that answer from a script, by pod; who is not in it is silent. Remembers who was asked."""

    def __init__(self):
        self.reports, self.asked, self.now = {}, [], 0.0
        self.source = GatewaySignalSource()

    async def report(self, address, tokens, tls=None):
        assert tokens == ("secret",)
        name = address.partition(":")[0]
        self.asked.append(name)
        return self.reports.get(name)

    def look(self, build, *pods, **reports):
        """Signals 2 seconds later."""
        self.now += 2.0
        self.reports = {name.replace("_", "-"): report for name, report in reports.items()}
        asked = tuple(asyncio.run(ask_gateways(pods, self, ("secret",))))
        observed = Observed(parsing.read_service(build()), "uid", 1, {}, False, (), asked, True, self.now, "")
        return asyncio.run(self.source.signals(observed))


@pytest.fixture
def gateways():
    return Scripted()


def test_two_gateways_give_the_same_sums_as_one(gateways, build):
    other, pods = Scripted(), (pod("gateway-0"), pod("gateway-1"), pod("decode-0", "decode"))
    held = {"queued_requests": 4, "queued_tokens": 40, "queued_prompt_tokens": 80, "workers": (load(),)}
    half = {"queued_requests": 2, "queued_tokens": 20, "queued_prompt_tokens": 40, "workers": (load(),)}
    for step in range(5):
        waiting = (LengthBucket(64, 2, 200),)
        one = gateways.look(build, pods[0], pods[2], gateway_0=told(10 * step, **held, waiting=waiting * 2))
        two = other.look(
            build,
            *pods,
            gateway_0=told(5 * step, "a", **half, waiting=waiting),
            gateway_1=told(5 * step, "b", **half, waiting=waiting),
        )
    assert one == two
    assert (one.traffic.seconds, one.traffic.arrivals) == (8.0, (PromptLengths(64, 40, 4000),))
    assert one.traffic.recent == one.traffic.arrivals
    assert one.traffic.waiting == (PromptLengths(64, 4, 400),)
    assert (one.traffic.queued, one.traffic.queued_tokens, one.traffic.queued_prompt_tokens) == (4, 40, 80)


def test_no_traffic_is_zero_and_no_answer_is_missing(gateways, build):
    assert gateways.look(build, pod(), gateway_0=told()).traffic is None  # one report has no rate
    assert gateways.look(build, pod(), gateway_0=told()).traffic.arrivals == ()
    assert gateways.look(build, pod()).traffic is None
    assert gateways.look(build, pod(), gateway_0=told()).traffic.arrivals == ()
    assert gateways.look(build).traffic is None  # there is no gateway


def test_silent_gateways_are_named_once(gateways, build, caplog):
    for _ in range(3):
        gateways.look(build, pod(), pod("gateway-1"), gateway_0=told())
    assert [record.getMessage() for record in caplog.records if "gateway-1" in record.getMessage()] == [
        "demo: gateways that do not answer: ['gateway-1']"
    ]


@pytest.mark.parametrize("fields", [{"ready": False}, {"leaving": True}, {"ready": False, "address": ""}])
def test_gateways_that_start_or_leave_may_be_silent(gateways, build, fields):
    for _ in range(2):
        signals = gateways.look(build, pod(), pod("gateway-1", **fields), gateway_0=told())
    assert signals.traffic is not None


def test_a_gateway_that_is_not_ready_for_want_of_workers_tells_of_demand(gateways, build):
    waiting = pod(ready=False)
    gateways.look(build, waiting, gateway_0=told())
    assert gateways.look(build, waiting, gateway_0=told(7, queued_requests=7)).traffic.queued == 7


def test_a_gateway_that_leaves_still_counts(gateways, build):
    leaving = pod("gateway-1", leaving=True)
    gateways.look(build, pod(), leaving, gateway_0=told(), gateway_1=told(5, "old"))
    signals = gateways.look(build, pod(), leaving, gateway_0=told(), gateway_1=told(8, "old"))
    assert signals.traffic.arrivals == (PromptLengths(64, 3, 300),)


def test_each_worker_counts_once_as_it_told_last(gateways, build):
    worker = pod("decode-0", "decode")
    older = (load(age=3.0, load=Load(1, 1, 1, 1, 1, 1, 1)),)
    pods = (pod(), pod("gateway-1"), worker)
    signals = gateways.look(build, *pods, gateway_0=told(workers=older), gateway_1=told(name="h", workers=(load(),)))
    (found,) = signals.workers
    assert (found.name, found.pool, found.sample_age) == ("decode-0", "decode", 0.5)
    assert found.blocks == Blocks(10, 20, 60, 1, granted=6, pending=7, growth=8, size=32)
    assert (found.queue_tokens, found.parked_tokens, found.prompt_tokens, found.slots) == (700, 300, 400, 64)
    assert (found.running, found.waiting, found.prompts, found.context_tokens) == (4, 4, 2, 900)
    assert found.prefill_cost.per_token == pytest.approx(2e-4)
    assert found.prefill_cost.alone(1) == pytest.approx(0.0512 + 1e-4 + 1e-8)
    assert found.decode_cost == DecodeCost(0.01, 1e-3, 1e-7)
    assert (found.age, found.start_seconds) == (100.0, 7.0)


def test_a_worker_whose_steps_all_had_as_many_rows_has_the_cost_of_its_pool(gateways, build):
    new = replace_struct(LOAD, decode_cost=DecodeCoefficients(0.03, 0, 0, only_rows=1))
    reports = (load(), load("decode-1", load=new), load("prefill-0", load=new))
    pods = (pod("decode-0", "decode"), pod("decode-1", "decode"), pod("prefill-0", "prefill"))
    found = gateways.look(build, pod(), *pods, gateway_0=told(workers=reports)).workers
    measured = DecodeCost(0.01, 1e-3, 1e-7)
    assert [worker.decode_cost for worker in found] == [measured, measured, DecodeCost(0.03, 0, 0, only_rows=1)]


def test_what_a_worker_has_not_measured_or_told_is_missing(gateways, build):
    workers = pod("decode-0", "decode"), pod("prefill-0", "prefill", ready=False)
    fresh = load(load=Load(0, 0, 0, 100, 0, 0, 0))
    decode, prefill = gateways.look(build, pod(), *workers, gateway_0=told(workers=(fresh,))).workers
    assert (decode.prefill_cost, decode.decode_cost, decode.slots) == (None, None, None)
    assert (prefill.sample_age, prefill.blocks, prefill.queue_tokens) == (None, None, None)
    assert (prefill.pool, prefill.ready) == ("prefill", False)


@pytest.mark.parametrize(
    ("fields", "says"),
    [({"leaving": True}, False), ({"draining_since": 1.0}, False), ({"failed": True}, False), ({}, True)],
)
def test_workers_on_their_way_out_are_known_as_such(gateways, build, fields, says):
    draining = load(load=Load(0, 0, 0, 100, 0, 0, 0, draining=says))
    (worker,) = gateways.look(
        build, pod(), pod("decode-0", "decode", **fields), gateway_0=told(workers=(draining,))
    ).workers
    assert worker.draining


def test_what_has_ended_is_forgotten(gateways, build):
    gateways.look(build, pod(), gateway_0=told())
    gateways.source.forget("uid")
    gateways.source.forget("uid")
    assert gateways.look(build, pod(), gateway_0=told()).traffic is None
