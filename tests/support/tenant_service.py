"""A service of several gateways in virtual time, whose tenants send prompts: admission, routing and schedulers are the
real ones. Messages take no time; workers tell their load every BUSY_INTERVAL.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from known_signals import spec

from legato_cli.simulation.kv_handoffs import KVHandoff, KVHandoffs
from legato_cli.simulation.request import SimulatedRequest
from legato_cli.simulation.scheduled_request import ScheduledRequest
from legato_cli.simulation.scheduled_worker import ScheduledWorker
from legato_cli.simulation.simulated_gateway import SimulatedGateway
from legato_cli.simulation.simulated_pod import WorkerKind
from legato_cli.simulation.workload import Arrival
from legato_engine.core.load_frame import BUSY_INTERVAL
from legato_engine.core.served_tokens import ServedTokens
from legato_engine.runner.profile import StepTimes
from legato_engine.scheduler.results import Emission
from legato_engine.transfer.virtual_time import VirtualTime
from legato_operator.autoscaler.signals import Pool
from legato_protocol.load import TenantService
from legato_protocol.stream import Role

KIND = WorkerKind(  # about an 8B model on an H200
    times=StepTimes(per_step=0.0065, per_row=0, per_context=3.4e-8, per_token=3.3e-5, per_pair=1.1e-9),
    kv_tokens=800_000,
    chunk_tokens=512,
    block_size=16,
    tpot=0.1,
    slots=64,
    prefix_block=512,
    start=0.0,
)


class TenantGateway(SimulatedGateway):
    """One that hears what tenants are served through others."""

    def served_elsewhere(self, served: dict[str, TenantService]) -> None:
        self._admission.served_elsewhere(served, self._time.now)


@dataclass(eq=False, slots=True)
class Sent:
    """A request of a tenant, and what is done once it has ended."""

    request: ScheduledRequest
    gateway: int
    ended: Callable[[], None]


@dataclass(slots=True)
class Tenant:
    """What became of its requests: times to the first token, in seconds, and tokens of prompts that were answered."""

    ttft: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    refused: int = 0


class TenantLoads:
    """`roles` are those of the workers; `when_busy` is the manifest's `routing.whenPrefillBusy`."""

    def __init__(self, gateways: int, roles: Sequence[Role], when_busy: str = "Local") -> None:
        self.time = VirtualTime()
        self.tenants: dict[str, Tenant] = {}
        self._sent: dict[str, Sent] = {}
        self._serial = itertools.count()
        self._awake: dict[ScheduledWorker, None] = {}
        self._handoffs = KVHandoffs(self.time, 1e9, self._arrived, self._wake)
        manifest = spec(routing={"whenPrefillBusy": when_busy})
        self.gateways = [
            TenantGateway(manifest, self.time, self._handoffs, self._refused, self._wake) for _ in range(gateways)
        ]
        self._served: dict[ScheduledWorker, ServedTokens] = {}
        for number, role in enumerate(roles):
            pool: Pool = "prefill" if role == "prefill" else "decode"
            worker = ScheduledWorker(f"{role}-{number}", pool, number, KIND, 0.0, role=role, max_length=131_072)
            self._served[worker] = ServedTokens()
            for gateway in self.gateways:
                gateway.greeted(worker)
        self._tell()

    # ── tenants ──

    def flood(self, tenant: str, gateway: int, prompt: int, output: int, concurrency: int) -> None:
        """From now on it has so many requests there, always."""

        def again() -> None:
            self.send(tenant, gateway, prompt, output, again)

        for _ in range(concurrency):
            again()

    def regular(self, tenant: str, gateway: int, prompt: int, output: int, every: float, count: int) -> None:
        """It sends a request now and then."""
        for number in range(count):
            self.time.after(number * every, partial(self.send, tenant, gateway, prompt, output))

    def send(
        self, tenant: str, gateway: int, prompt: int, output: int, ended: Callable[[], None] = lambda: None
    ) -> None:
        simulated = SimulatedRequest(next(self._serial), Arrival(self.time.now, prompt, output), prompt)
        request = ScheduledRequest(simulated, [], expires=self.time.now + 600, tenant=tenant)
        self.tenants.setdefault(tenant, Tenant())
        self._sent[request.id] = Sent(request, gateway, ended)
        self.gateways[gateway].offer(request)
        self._settle()

    def run(self, until: float) -> None:
        self.time.run(until)

    # ── workers ──

    def _wake(self, worker: ScheduledWorker) -> None:
        self._awake[worker] = None

    def _settle(self) -> None:
        while self._awake:
            worker = next(iter(self._awake))
            del self._awake[worker]
            if not worker.busy and (seconds := worker.launch(self.time.now)) is not None:
                self.time.after(seconds, partial(self._stepped, worker))
            if worker.role != "prefill":
                self._handoffs.grant(worker)

    def _stepped(self, worker: ScheduledWorker) -> None:
        result = worker.step_ended(self.time.now)
        worker.events()
        for request, tokens in result.prompts:
            self._served[worker].prompt(self._gateway_of(request.id), request.tenant, tokens)
        for emission in result.emissions:
            self._emitted(worker, emission)
        self._handoffs.stepped(worker, result.advanced, result.prefilled)
        self._wake(worker)
        self._settle()

    def _gateway_of(self, id: str) -> int:
        return self._sent[id].gateway if id in self._sent else -1

    def _arrived(self, handoff: KVHandoff, emissions: Sequence[Emission]) -> None:
        request = self._sent[handoff.incoming.request.id].request
        request.leave(handoff.source)
        request.decoder, request.running = handoff.target, handoff.incoming.request
        for emission in emissions:
            self._emitted(handoff.target, emission)

    def _emitted(self, worker: ScheduledWorker, emission: Emission) -> None:
        sent, tenant = self._sent[emission.request.id], self.tenants[emission.request.tenant]
        self._served[worker].output(sent.gateway, emission.request.tenant, len(emission.sampled))
        request, gateway = sent.request, self.gateways[sent.gateway]
        if request.simulated.first is None:
            request.simulated.first = self.time.now
            tenant.ttft.append(request.simulated.ttft)
            tenant.prompt_tokens += request.prompt
            gateway.has_token(request)
        if emission.finish is not None:
            del self._sent[request.id]
            for place in list(request.places):
                request.leave(place)
            gateway.ended(request, request.output)
            self.time.after(0, sent.ended)

    def _refused(self, request: ScheduledRequest) -> None:
        self.tenants[request.tenant].refused += 1
        del self._sent[request.id]

    def _tell(self) -> None:
        """All workers tell all gateways of their load, now and again."""
        for worker, served in self._served.items():
            told = served.take(range(len(self.gateways)))
            for number, gateway in enumerate(self.gateways):
                gateway.served_elsewhere(told.get(number, {}))
                gateway.told(worker)
        for gateway in self.gateways:
            gateway.turn()
        self._settle()
        self.time.after(BUSY_INTERVAL, self._tell)


def percentile(values: Sequence[float], share: float) -> float:
    """By the nearest rank."""
    return sorted(values)[max(0, -(-len(values) * round(100 * share) // 100) - 1)]
