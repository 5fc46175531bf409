"""The report of demand (`legato_protocol.wire.demand`), assembled from the gateway's parts. Changes nothing."""

from collections.abc import Callable, Iterator

from legato_gateway.admission.demand import LengthCounter
from legato_gateway.relay.relay import RequestRelay
from legato_gateway.workers.fleet import Fleet
from legato_protocol.model_files.adapter_file import AdapterFile
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.wire.demand import DemandReport, ReportedLoad, WorkerLink


class DemandReporter:
    """Reports the demand on the gateway `gateway`, which starts now on the clock."""

    def __init__(
        self,
        gateway: str,
        relay: RequestRelay,
        fleet: Fleet,
        clock: Callable[[], float],
        tokens: ServiceTokens | None = None,
        adapters: AdapterFile | None = None,
    ) -> None:
        self._gateway = gateway
        self._relay = relay
        self._fleet = fleet
        self._tokens = tokens or ServiceTokens()
        self._adapters = adapters
        self._clock = clock
        self._began = clock()

    def report(self) -> DemandReport:
        """Returns the report as of now."""
        now, demand = self._clock(), self._relay.demand
        waiting, held = LengthCounter(), self._relay.unplaced()
        for generation in self._relay.without_token():
            waiting.add(generation.uncached)
        return DemandReport(
            gateway=self._gateway,
            uptime=now - self._began,
            arrivals=demand.arrivals.buckets(),
            refused=dict(demand.refused),
            retried=demand.recent_retries(now),
            outputs=demand.outputs.buckets(),
            output_squares=float(demand.output_squares),
            head_wait=dict(demand.head_wait(now)),
            waiting=waiting.buckets(),
            held_requests=len(held),
            held_tokens=sum(generation.uncached for generation in held),
            held_prompt_tokens=sum(len(generation.request.prompt) for generation in held),
            workers=tuple(self._loads(now)),
            links=tuple(self._links(now)),
            tokens=self._tokens.ids,
            adapters=self._adapters.value.id if self._adapters is not None else None,
        )

    def _links(self, now: float) -> Iterator[WorkerLink]:
        for worker in self._fleet:
            lost_for = None if worker.lost_at is None else max(0.0, now - worker.lost_at)
            yield WorkerLink(worker.name, worker.greeted, "" if worker.greeted else worker.problem, lost_for)

    def _loads(self, now: float) -> Iterator[ReportedLoad]:
        for worker in self._fleet:
            hello, load = worker.hello, worker.load
            if hello is not None and load is not None and not worker.foreign:
                age = max(0.0, now - worker.loaded_at)
                yield ReportedLoad(worker.name, hello.epoch, hello.role, hello.block_size, age, load)
