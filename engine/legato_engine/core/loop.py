"""The core's loop, in one thread: receive → process → schedule → report → launch.

Another thread computes the steps (`compute`), so frames and hand-offs never wait for a step. On an asynchronous device,
the next step is launched before the output of the current one is known, so that the device never waits for the loop
(vLLM calls this asynchronous scheduling). `assembly` builds the collaborators.
"""

import selectors
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from legato_engine.adapters.catalog import AdapterCatalog
from legato_engine.adapters.offer import AdapterOffer
from legato_engine.adapters.resident import ResidentAdapters
from legato_engine.core.channel import ServerChannel, ServerGone
from legato_engine.core.compute import Compute
from legato_engine.core.disk.disk_thread import DiskThread
from legato_engine.core.frames import Inbox, IterationReport
from legato_engine.core.handoff.fetch_log import FetchLog
from legato_engine.core.handoff.lenders import BlockLenders
from legato_engine.core.handoff.receivers import HandoffReceivers
from legato_engine.core.handoff.senders import HandoffSenders
from legato_engine.core.handoff.sides import HandoffSides
from legato_engine.core.profiling import Profiling
from legato_engine.core.reporting.heartbeat import Pulse
from legato_engine.core.reporting.load_reporter import LoadReporter
from legato_engine.core.reporting.outbox import Outbox
from legato_engine.core.reporting.phases import PhaseLog
from legato_engine.core.reporting.rates import Rates
from legato_engine.core.reporting.tier_times import TierTimes
from legato_engine.core.requests.request_handler import RequestHandler
from legato_engine.core.slices.policy import SliceClaim
from legato_engine.core.slices.slices import TimeSlices
from legato_engine.grammars.compilations import Compilations
from legato_engine.ranges import HANDOFF
from legato_engine.runner.interface import StepRunner
from legato_engine.scheduler.batch import Batch, StepOutput
from legato_engine.scheduler.results import Emission
from legato_engine.scheduler.scheduler import Scheduler
from legato_engine.transfer.agent import TransferAgent
from legato_engine.transfer.session.events import (
    Aborted,
    Arrived,
    BlocksAsked,
    Committed,
    Granted,
    GrantRevoked,
    Released,
    TransferEvent,
    WritingBegan,
)
from legato_protocol.wire import stream

IDLE = 0.5  # seconds: the longest silence towards gateways, and the longest delay until a deadline is noticed


@dataclass(frozen=True, slots=True)
class CoreParts:
    """The collaborators of a core. Without an `agent` it hands nothing off; without a `catalog`, adapters are fixed;
    without a `disk`, no KV is in files."""

    compute: Compute
    runner: StepRunner
    scheduler: Scheduler
    agent: TransferAgent | None
    grammars: Compilations
    adapters: ResidentAdapters
    catalog: AdapterCatalog | None
    profiling: Profiling
    slices: TimeSlices
    clock: Callable[[], float]
    disk: DiskThread | None = None


class Core:
    def __init__(self, channel: ServerChannel, parts: CoreParts, pulse: Pulse) -> None:
        self._channel = channel
        self._compute = parts.compute
        self._runner = parts.runner
        self._scheduler = scheduler = parts.scheduler
        self._catalog = parts.catalog
        self._profiling = parts.profiling
        self._slices = parts.slices
        self._disk = parts.disk
        self._offer: AdapterOffer | None = None  # not yet reported to the server
        self._clock = parts.clock
        self._outbox = Outbox(PhaseLog(parts.clock))
        self._rates, self._tier_times = Rates(), TierTimes()
        self._handoffs = None if parts.agent is None else self._sides(parts.agent)
        self._handler = RequestHandler(scheduler, self._handoffs, self._outbox, parts.grammars, parts.adapters)
        self._pulse = pulse
        most = scheduler.limits.max_waiting
        self._reporter = LoadReporter(
            self._handler, self._rates, self._tier_times, pulse, parts.slices, max_waiting=most
        )
        self._in_flight: deque[Batch] = deque()  # the first is awaited; a second one was launched ahead
        self._handles: deque[Any] = deque()  # of launched steps; only the compute thread uses it
        self._computing = False
        self._slack = inf  # seconds that decoding sequences can wait after the current step
        self._since = 0.0  # when the awaited step was launched, or the one before it ended
        self._selector = selectors.DefaultSelector()
        sources = (channel, parts.compute, parts.grammars, parts.adapters, parts.profiling, parts.agent, parts.catalog)
        for source in (*sources, parts.slices.wakeup, parts.disk):
            if source is not None:
                self._selector.register(source, selectors.EVENT_READ)

    def _sides(self, agent: TransferAgent) -> HandoffSides:
        block_size, kv_revision = self._runner.layout.block_size, self._runner.kv_revision
        outgoing, incoming = self._scheduler.outgoing, self._scheduler.incoming
        senders = HandoffSenders(outgoing, agent, self._outbox, block_size=block_size, kv_revision=kv_revision)
        fetches = FetchLog(self._outbox.phases, self._clock)
        receivers = HandoffReceivers(incoming, agent, self._outbox, fetches, kv_revision=kv_revision)
        return HandoffSides(agent, senders, receivers, BlockLenders(self._scheduler.loans, agent))

    def run(self) -> None:
        """Runs until the server closes its end."""
        with suppress(ServerGone):
            while True:
                self.run_once()

    def run_once(self) -> None:
        """Runs an iteration once there is a frame, an event, a finished step or a due timer. Raises ServerGone."""
        self._selector.select(self._timeout())
        if not self._in_flight:
            self._pulse.begin()
        self._receive()
        self._follow_adapters()
        self._process()
        self._handler.begin_pending()  # after a step, which may have ended the last sequence of an adapter
        batches = self._schedule()
        self._report()  # before the step, which may never return
        self._launch(batches)
        if not self._in_flight:
            self._pulse.end()

    # ── receive ──

    def _receive(self) -> None:
        now = self._clock()
        self._slices.clear_wakeup()
        for frame in self._channel.receive():
            assert isinstance(frame, Inbox)
            if frame.tokens and self._handoffs is not None:
                self._handoffs.agent.trust(frame.tokens)
            if frame.adapters is not None and self._catalog is not None:
                self._catalog.follow(frame.adapters)
            if frame.profile is not None:
                self._profiling.begin(frame.profile, len(self._in_flight))
            self._handler.take_in(frame, now)
        if self._handoffs is not None:
            for event in self._handoffs.agent.poll():
                with self._profiling.ranges.part(HANDOFF):
                    self._handle_transfer(event, self._handoffs)
                self._reporter.mark_changed()
        if self._disk is not None:
            for outcome in self._disk.take():
                self._scheduler.on_disk_done(outcome)
                self._reporter.mark_changed()
        self._handler.expire(now)

    def _follow_adapters(self) -> None:
        if self._catalog is not None:
            self._catalog.retry()
            if offer := self._catalog.take_done():
                self._offer = offer
                self._handler.on_adapters_changed()

    def _timeout(self) -> float:
        timer = self._handoffs.agent.next_timer() if self._handoffs is not None else None
        timer = IDLE if timer is None else timer
        now = self._clock()
        deadline = max(0.0, self._scheduler.earliest_deadline - now)
        return min(IDLE, deadline, self._reporter.due_in(now), timer, self._slices.timer)

    def _handle_transfer(self, event: TransferEvent, handoffs: HandoffSides) -> None:
        senders, receivers, lenders = handoffs.senders, handoffs.receivers, handoffs.lenders
        match event:
            case BlocksAsked():
                lenders.on_asked(event)
            case Granted():
                senders.on_granted(event)
            case Committed():
                senders.on_committed(event)
                lenders.on_ended(event)
            case Arrived():
                self._emit(receivers.on_arrived(event, self._clock()))
            case Aborted(side="sender"):
                senders.on_aborted(event)
                lenders.on_ended(event)
            case Aborted():
                receivers.on_aborted(event)
            case Released():
                receivers.on_released(event)
            case GrantRevoked(side="sender"):
                senders.on_revoked(event)
            case GrantRevoked():
                receivers.on_revoked(event)
            case WritingBegan():
                receivers.on_writing_began(event)

    # ── process, schedule, launch ──

    def _process(self) -> None:
        """Processes the output of the first step in flight, if it has finished."""
        output = self._compute.result() if self._in_flight else None
        if output is None:
            return
        self._pulse.begin()
        batch, now = self._in_flight.popleft(), self._clock()
        self._computing = False
        if self._handoffs is not None:  # before blocks that this step used are pushed or granted
            with self._profiling.ranges.part(HANDOFF):
                self._handoffs.agent.after_step(self._runner.written)
        moving = self._tier_times.measure(self._runner.arena.host.take_times())
        result = self._scheduler.process(batch, output, now, moving)
        if batch.drafting:
            return
        for scored in result.scored:
            self._outbox.add_prompt_logprobs(scored)
        self._emit(result.emissions)
        self._outbox.phases.on_prefilled(result.prefilled)
        self._handler.end_faulted(result.faulted)
        if self._handoffs is not None:
            self._handoffs.senders.after_step(result.advanced, result.prefilled)
        if batch.rows:
            seconds = now - self._since + result.drafting
            self._rates.measure(result.prompt_tokens, result.decode_rows, seconds, now, result.accepted)
        self._since = now
        self._reporter.count_step(result)
        self._profiling.count_step()

    def _schedule(self) -> list[Batch]:
        """Returns the steps to launch: the next one, and the one ahead if it can be scheduled already.

        Hand-offs that can make progress do so here, too.
        """
        batches = []
        if self._handoffs is not None:
            self._handoffs.senders.continue_migrations()
        if not self._computing:
            now = self._clock()
            if not self._in_flight:
                batches.append(self._schedule_slice(now))
            if self._runner.ahead is not None:
                batches.append(self._scheduler.schedule_ahead(now))
            self._pulse.expect(self._scheduler.expected or 0.0)
            for request in self._scheduler.take_started():
                self._outbox.report_start(request)
        if self._handoffs is not None:
            self._handoffs.receivers.grant()
            self._handoffs.lenders.send()
        if self._disk is not None and (orders := self._scheduler.pool.disk.take_orders()):
            self._disk.submit(orders, self._runner.written)
        return [batch for batch in batches if batch is not None]

    def _schedule_slice(self, now: float) -> Batch | None:
        """Returns the next step if there is a time slice for it."""
        if not self._scheduler.runnable:
            self._since = now
            self._slices.withdraw()
            return self._scheduler.schedule(now)  # for hand-offs that wait for blocks
        seconds = self._slices.begin(self._claim)
        if seconds is None:
            return None
        batch = self._scheduler.schedule(now, seconds)
        if batch is None:
            self._slices.withdraw()
        return batch

    def _claim(self) -> SliceClaim:
        pace = self._scheduler.pace
        self._slack = pace.slack
        due = self._since + pace.slack
        return SliceClaim(due, due + pace.decoding, self._since + pace.pause, pace.prompts)

    def _launch(self, batches: list[Batch]) -> None:
        """Launches these steps and starts to wait for the first in flight."""
        if batches and not self._in_flight:
            self._since = self._clock()
        self._in_flight.extend(batches)
        if self._in_flight and not self._computing:
            self._computing = True
            self._slices.expect(self._scheduler.expected or 0.0)
            self._compute.start(lambda: self._compute_slice(batches))

    def _compute_slice(self, batches: list[Batch]) -> StepOutput:
        """Computes in this thread, so that another worker's slice begins while the loop processes the output."""
        try:
            return self._compute_first(batches)
        finally:
            self._slices.end(self._slack)

    def _compute_first(self, batches: list[Batch]) -> StepOutput:
        ahead = self._runner.ahead
        if ahead is None:
            return self._runner.step(*batches)
        self._handles.extend([ahead.launch(batch) for batch in batches])
        return ahead.collect(self._handles.popleft())

    def _emit(self, emissions: Sequence[Emission]) -> None:
        self._reporter.count_tokens(self._outbox.emit(emissions))
        if self._handoffs is not None:
            for emission in [each for each in emissions if each.request.params.logprobs is not None]:
                self._handoffs.senders.keep(emission)

    # ── report ──

    def _report(self) -> None:
        """Sends a report to the server, unless it would be empty."""
        self._profiling.expire()
        if profiled := self._profiling.take():
            self._channel.send(profiled)
        frames, handoffs = self._outbox.take()
        phases = self._outbox.phases.take()
        events = tuple(stream.encode(event) for event in self._scheduler.pool.take_events())
        status = self._reporter.status_if_due(self._clock())
        if frames or events or handoffs or status or phases or self._offer:
            loads, everyone = self._reporter.frames(status.load) if status else ((), ())
            report = IterationReport((*frames, *loads), everyone, events, handoffs, status, phases, self._offer)
            self._channel.send(report)
            self._offer = None
        if status:
            self._handler.forget_finished()
