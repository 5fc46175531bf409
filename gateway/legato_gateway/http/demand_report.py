"""The report of demand (`legato_protocol.wire.demand`), assembled from the gateway's parts, and waits for changes."""

import asyncio
import hashlib
from collections.abc import Callable, Iterator

from msgspec import structs
from starlette.types import Receive

from legato_gateway.admission.demand import LengthCounter
from legato_gateway.relay.relay import RequestRelay
from legato_gateway.serving.disconnect import disconnected
from legato_gateway.workers.fleet import Fleet
from legato_protocol.model_files.adapter_file import AdapterFile
from legato_protocol.security.followed_tokens import ServiceTokens
from legato_protocol.wire.demand import LONGEST_WAIT, STALE_AFTER, DemandReport, ReportedLoad, WorkerLink, encode

CHECK_EVERY = 1.0  # seconds; a request that is queued does not wait for the next check


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
        waiting, queued = LengthCounter(), self._relay.unplaced()
        for generation in self._relay.without_token():
            waiting.add(generation.uncached)
        report = DemandReport(
            gateway=self._gateway,
            uptime=now - self._began,
            arrivals=demand.arrivals.buckets(),
            refused=dict(demand.refused),
            retried=demand.recent_retries(now),
            outputs=demand.outputs.buckets(),
            output_squares=float(demand.output_squares),
            head_wait=dict(demand.head_wait(now)),
            waiting=waiting.buckets(),
            queued_requests=len(queued),
            queued_tokens=sum(generation.uncached for generation in queued),
            queued_prompt_tokens=sum(len(generation.request.prompt) for generation in queued),
            workers=tuple(self._loads(now)),
            links=tuple(self._links(now)),
            tokens=self._tokens.ids,
            adapters=self._adapters.value.id if self._adapters is not None else None,
            canary=self._relay.canary(),
        )
        return structs.replace(report, digest=digest(report))

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


def digest(report: DemandReport) -> str:
    """Returns a digest that stays the same while only time passes, but for loads that become stale."""
    links = tuple(structs.replace(link, lost_for=None) for link in report.links or ())
    still = structs.replace(report, uptime=0.0, workers=tuple(map(_without_times, report.workers)), links=links)
    return hashlib.blake2b(encode(still), digest_size=8).hexdigest()


def _without_times(reported: ReportedLoad) -> ReportedLoad:
    ages = {"prefill_age": 0.0, "decode_age": 0.0, "step_age": 0.0, "core_silence": 0.0}
    return structs.replace(reported, age=float(reported.age > STALE_AFTER), load=structs.replace(reported.load, **ages))


class DemandWatch:
    """Holds back answers about demand until it changes, so that an idle service costs its operator few requests."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def notify(self) -> None:
        """Wakes all callers: a request was queued."""
        for each in self._waiting:
            if not each.done():
                each.set_result(None)

    def close(self) -> None:
        """Ends all waits, now and from now on: this gateway stops."""
        self._closed = True
        self.notify()

    async def wait(self, changed: Callable[[], bool], seconds: float, receive: Receive) -> None:
        """Waits until `changed`, for at most `seconds` and `LONGEST_WAIT`, or until the caller disconnects.

        `receive` is ASGI's.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + min(seconds, LONGEST_WAIT)
        left = asyncio.ensure_future(disconnected(receive))
        try:
            while not (self._closed or left.done() or changed()) and (rest := until - loop.time()) > 0:
                await self._pause(min(rest, CHECK_EVERY), left)
        finally:
            left.cancel()

    async def _pause(self, seconds: float, left: asyncio.Future[None]) -> None:
        """Waits for a queued request or a disconnected caller."""
        notified: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(notified)
        try:
            await asyncio.wait((notified, left), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting.discard(notified)
