"""Two tenants, one of which floods the service with long prompts, through one gateway or two: in virtual time."""

import dataclasses
import functools
import itertools
from collections import defaultdict
from functools import partial

import pytest
from known_signals import spec
from simulated_service import KIND

from legato_engine.core.reporting.load_frame import BUSY_INTERVAL
from legato_engine.core.reporting.served_tokens import ServedTokens
from legato_engine.runner.profile import StepTimes
from legato_engine.transfer.fakes.virtual_time import VirtualTime
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.scheduler.kv_handoffs import KVHandoffs
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledRequest, ScheduledWorker
from legato_simulator.engine.scheduler.simulated_gateway import SimulatedGateway
from legato_simulator.workload.workload import Arrival

PAIR, UNIFIED = ("prefill", "decode"), ("unified",)
PROMPT, OUTPUT, EVERY, COUNT = 1500, 16, 0.37, 24
TIMES = StepTimes(per_step=0.0065, per_row=0, per_context=3.4e-8, per_token=3.3e-5, per_pair=1.1e-9)
H200 = dataclasses.replace(KIND, times=TIMES, kv_tokens=800_000, slots=64, start=0.0)  # with an 8B model


class TenantGateway(SimulatedGateway):
    """A gateway that learns how much tenants are served through others."""

    def served_elsewhere(self, served):
        self._admission.served_elsewhere(served, self._time.now)


@dataclasses.dataclass
class Tenant:
    """Times to the first token, in seconds, and tokens of prompts that were answered."""

    ttft: list[float] = dataclasses.field(default_factory=list)
    prompt_tokens: int = 0


class TenantLoads:
    """Several gateways and workers of `roles`: admission, routing and schedulers are the real ones.

    Messages take no time; workers report their load every BUSY_INTERVAL."""

    def __init__(self, gateways, roles, when_busy="Local"):
        self.time, self.tenants = VirtualTime(), defaultdict(Tenant)
        self._sent = {}  # requests, their gateways, and the function that each end calls
        self._serial, self._awake = itertools.count(), {}
        self._handoffs = KVHandoffs(self.time, 1e9, self._arrived, self._wake)
        given = spec(routing={"whenPrefillBusy": when_busy}), self.time, self._handoffs, self._refused, self._wake
        self.gateways = [TenantGateway(*given) for _ in range(gateways)]
        self._served = {}
        for number, role in enumerate(roles):
            pool = "prefill" if role == "prefill" else "decode"
            worker = ScheduledWorker(f"{role}-{number}", pool, H200, 0.0, role=role, max_length=131_072)
            self._served[worker] = ServedTokens()
            for gateway in self.gateways:
                gateway.add_worker(worker)
        self._report()

    def flood(self, tenant, gateway, prompt, concurrency):
        """Keeps this number of requests there, always."""
        for _ in range(concurrency):
            self.send(tenant, gateway, prompt, again=True)

    def send(self, tenant, gateway, prompt, again=False):
        simulated = SimulatedRequest(next(self._serial), Arrival(self.time.now, prompt, OUTPUT), prompt)
        request = ScheduledRequest(simulated, [], expires=self.time.now + 600, tenant=tenant)
        ended = partial(self.send, tenant, gateway, prompt, again) if again else lambda: None
        self._sent[request.id] = request, gateway, ended
        self.gateways[gateway].offer(request)
        self._settle()

    def _wake(self, worker):
        self._awake[worker] = None

    def _settle(self):
        while self._awake:
            worker = next(iter(self._awake))
            del self._awake[worker]
            if not worker.busy and (seconds := worker.launch(self.time.now)) is not None:
                self.time.after(seconds, partial(self._stepped, worker))
            if worker.role != "prefill":
                self._handoffs.grant(worker)

    def _stepped(self, worker):
        result = worker.end_step(self.time.now)
        worker.take_events()
        for request, tokens in result.prompts:
            gateway = self._sent[request.id][1] if request.id in self._sent else -1
            self._served[worker].count_prompt(gateway, request.tenant, tokens)
        for emission in result.emissions:
            self._emitted(worker, emission)
        self._handoffs.on_step_end(worker, result.advanced, result.prefilled)
        self._wake(worker)
        self._settle()

    def _arrived(self, handoff, emissions):
        request, *_ = self._sent[handoff.incoming.request.id]
        request.leave(handoff.source)
        request.decoder, request.running = handoff.target, handoff.incoming.request
        for emission in emissions:
            self._emitted(handoff.target, emission)

    def _emitted(self, worker, emission):
        (request, number, ended), tenant = self._sent[emission.request.id], self.tenants[emission.request.tenant]
        gateway = self.gateways[number]
        self._served[worker].count_output(number, emission.request.tenant, len(emission.sampled))
        if request.simulated.first is None:
            request.simulated.first = self.time.now
            tenant.ttft.append(request.simulated.ttft)
            tenant.prompt_tokens += request.prompt
            gateway.record_first_token(request)
        if emission.finish is not None:
            del self._sent[request.id]
            for place in list(request.places):
                request.leave(place)
            gateway.end(request, request.output)
            self.time.after(0, ended)

    def _refused(self, request):
        del self._sent[request.id]

    def _report(self):
        """All workers send all gateways their load, now and again."""
        for worker, served in self._served.items():
            elsewhere = served.take(range(len(self.gateways)))
            for number, gateway in enumerate(self.gateways):
                gateway.served_elsewhere(elsewhere.get(number, {}))
                gateway.update_load(worker)
        for gateway in self.gateways:
            gateway.on_fleet_change()
        self._settle()
        self.time.after(BUSY_INTERVAL, self._report)


@functools.cache
def slowest_ttft(roles, gateways, flooded):
    """The longest time to first token of `light`, which uses the last gateway, with a flood through `flooded`."""
    loads = TenantLoads(gateways, roles)
    for gateway in flooded:
        loads.flood("flood", gateway, 8000, 32 // len(flooded))
    loads.time.run(3)
    for number in range(COUNT):
        loads.time.after(number * EVERY, partial(loads.send, "light", gateways - 1, PROMPT))
    loads.time.run(3 + EVERY * COUNT)
    assert len(loads.tenants["light"].ttft) == COUNT
    return max(loads.tenants["light"].ttft)


@pytest.mark.parametrize("roles", [PAIR, UNIFIED], ids=["pair", "unified"])
@pytest.mark.parametrize(("gateways", "flooded"), [(1, (0,)), (2, (0,)), (2, (0, 1))], ids=["one", "two", "flooded"])
def test_a_tenant_waits_at_most_twice_as_long_while_another_floods(roles, gateways, flooded):
    assert slowest_ttft(roles, gateways, flooded) <= 2 * slowest_ttft(roles, 1, ())


@pytest.mark.parametrize(
    ("roles", "when_busy", "difference"),
    [(PAIR, "Wait", 0.1), (PAIR, "Local", 0.15), (UNIFIED, "Wait", 0.1)],
    ids=["pair", "helped", "unified"],
)
def test_two_gateways_share_service_as_one_does(roles, when_busy, difference):
    """Both tenants flood, one with prompts four times as long; with two gateways, each through one of them. Each of
    these judges for itself how much time decode workers have, which is more often enough for shorter prompts."""

    def shares(gateways):
        loads = TenantLoads(gateways, roles, when_busy)
        loads.flood("long", 0, 8000, 16)
        loads.flood("short", gateways - 1, 2000, 32)
        loads.time.run(12)
        return {name: tenant.prompt_tokens for name, tenant in loads.tenants.items()}

    one, two = shares(1), shares(2)
    assert two == pytest.approx(one, rel=difference)
    assert one["long"] == pytest.approx(one["short"], rel=0.1)
