"""Reports the core's load: to gateways as `Load`, and to the server for `/state` and `/metrics`."""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import asdict, replace

import msgspec

from legato_engine.core.frames import DECODE_BATCHES, CoreStatus, CoreTotals, ForGateway
from legato_engine.core.reporting.heartbeat import Pulse
from legato_engine.core.reporting.load_frame import BUSY_INTERVAL, IDLE_INTERVAL, credits, load_frame
from legato_engine.core.reporting.outbox import split_key
from legato_engine.core.reporting.rates import Rates
from legato_engine.core.reporting.served_tokens import ServedTokens
from legato_engine.core.reporting.tier_times import TierTimes
from legato_engine.core.requests.request_handler import RequestHandler
from legato_engine.core.slices.slices import TimeSlices
from legato_engine.kvcache.tier_counts import TierCounts
from legato_engine.scheduler.results import SchedulerLoad, StepResult
from legato_protocol.wire import stream
from legato_protocol.wire.kv_events import DISK, HOST, TIERS
from legato_protocol.wire.load import Load


class LoadReporter:
    def __init__(
        self,
        handler: RequestHandler,
        rates: Rates,
        times: TierTimes,
        pulse: Pulse,
        slices: TimeSlices,
        *,
        max_waiting: int,
    ) -> None:
        self._handler = handler
        self._slices = slices
        self._rates = rates
        self._times = times
        self._pulse = pulse
        self._max_waiting = max_waiting
        self._reported_at = float("-inf")
        self._changed = True
        self._steps = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._decode_rows = 0
        self._drafted = self._accepted = 0
        self._drafting = 0.0
        self._decode_batches = [0] * (len(DECODE_BATCHES) + 1)
        self._served = ServedTokens()
        self._checked = True  # blocks were checked since the core became idle
        self._mismatch = ""

    def count_step(self, result: StepResult) -> None:
        self._steps += 1
        self._prompt_tokens += result.prompt_tokens
        if result.decode_rows:
            self._decode_rows += result.decode_rows
            self._decode_batches[bisect_left(DECODE_BATCHES, result.decode_rows)] += 1
        self._drafted += result.drafted
        self._accepted += result.accepted
        self._drafting += result.drafting
        for request, tokens in result.prompts:
            self._served.count_prompt(split_key(request.id)[0], request.tenant, tokens)
        self._changed = True

    def mark_changed(self) -> None:
        """A hand-off allocated or freed blocks."""
        self._changed = True

    def count_tokens(self, counts: Mapping[tuple[int, str], int]) -> None:
        """Counts new tokens by gateway and tenant."""
        for (gateway, tenant), tokens in counts.items():
            self._output_tokens += tokens
            self._served.count_output(gateway, tenant, tokens)
        self._changed |= len(counts) > 0

    def due_in(self, now: float) -> float:
        """Seconds until `status_if_due` returns a status."""
        interval = BUSY_INTERVAL if self._changed else IDLE_INTERVAL
        return 0.0 if self._handler.news else max(0.0, self._reported_at + interval - now)

    def status_if_due(self, now: float) -> CoreStatus | None:
        """The current status, or None if the next report is not due."""
        if self.due_in(now) > 0:
            return None
        quiet = not (self._changed or self._handler.news)
        self._reported_at, self._changed, self._handler.news = now, False, False
        idle = self._handler.idle
        self._check(idle, quiet)
        load = self._handler.scheduler.load()
        order, shares = self._handler.order, self._slices.shared
        load_now, totals = self._load(load, now), self._totals(load)
        return CoreStatus(load_now, totals, idle, load.kv_utilization, self._mismatch, order, shares)

    def frames(self, load: Load) -> tuple[tuple[ForGateway, ...], tuple[bytes, ...]]:
        """Encodes `load` for gateways: a frame for each if they differ, or one for all."""
        gateways = self._handler.gateways
        served = self._served.take(gateways)
        if not served:
            return (), (stream.encode(load),)
        replace = msgspec.structs.replace
        loads = {gateway: replace(load, served_elsewhere=served.get(gateway, {})) for gateway in gateways}
        return tuple([ForGateway(gateway, stream.encode(each)) for gateway, each in loads.items()]), ()

    def _check(self, idle: bool, quiet: bool) -> None:
        """Checks the integrity of the block tables once in each idle phase, after a first quiet interval: it blocks the
        loop for about 0.7 µs per block."""
        if not idle:
            self._checked = False
        elif quiet and not self._checked:
            self._mismatch, self._checked = self._handler.scheduler.mismatch(), True

    def _load(self, load: SchedulerLoad, now: float) -> Load:
        handler, beat = self._handler, self._pulse.beat()
        waiting = load.waiting + handler.pending
        slots = handler.scheduler.limits.max_running
        return load_frame(
            load,
            self._rates,
            now,
            draining=handler.draining,
            credits=credits(self._max_waiting, waiting, handler.draining, len(handler.gateways)),
            slots=slots,
            step_age=0.0 if handler.scheduler.expected is None else beat.busy,
            step_expected=beat.expected,
            pending=handler.pending,
            adapters=handler.adapters.loaded,
            restore_seconds=self._restore_seconds(load),
            stretch=self._slices.stretch,
            put_rate=handler.handoffs.agent.put_rate() if handler.handoffs else 0.0,
            shares_cores=self._slices.shared,
        )

    def _totals(self, load: SchedulerLoad) -> CoreTotals:
        handoffs = self._handler.handoffs
        totals = CoreTotals(
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            received_handoffs=handoffs.receivers.received if handoffs else 0,
            sent_handoffs=handoffs.senders.sent if handoffs else 0,
            failed_handoffs=handoffs.senders.failed + handoffs.receivers.failed if handoffs else 0,
            preemptions=load.preemptions,
            shared_prompt_tokens=load.shared_prompt_tokens,
            decode_rows=self._decode_rows,
            decode_batches=tuple(self._decode_batches),
            tokens_by_tenant=load.tokens_by_tenant,
            transfer=asdict(handoffs.agent.counts()) if handoffs else {},
            drafted=self._drafted,
            accepted=self._accepted,
            drafting=self._drafting,
            tiers={name: self._tier(name, counts) for name, counts in load.tiers.items()},
            slice_wait=self._slices.waited,
        )
        if handoffs is None:
            return totals
        fetches = handoffs.receivers.fetches
        return msgspec.structs.replace(
            totals,
            kv_fetches=fetches.completed,
            kv_fetched_blocks=fetches.blocks,
            kv_fetched_bytes=fetches.bytes,
            kv_fetch_seconds=fetches.seconds,
            kv_lent_blocks=handoffs.lenders.lent_blocks,
            failed_kv_fetches=dict(fetches.failures),
        )

    def _tier(self, name: str, counts: TierCounts) -> TierCounts:
        if name != TIERS[HOST]:
            return counts
        return replace(counts, save_seconds=self._times.saving, restore_seconds=self._times.restoring)

    def _restore_seconds(self, load: SchedulerLoad) -> tuple[float, ...]:
        """Seconds to restore a block of each tier; one of a file is read into a slot first."""
        reading, host = self._handler.scheduler.pool.disk.seconds_per_read, self._times.per_restored
        each = {TIERS[HOST]: host, TIERS[DISK]: host + reading if reading else 0.0}
        return tuple([each[name] for name in load.tiers])
