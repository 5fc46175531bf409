"""How busy the core is, told to gateways as `Load` and to the server for `/state` and `/metrics`."""

from bisect import bisect_left
from dataclasses import asdict

import msgspec

from legato_engine.core import load_frame
from legato_engine.core.frames import DECODE_BATCHES, CoreStatus, CoreTotals, ForGateway
from legato_engine.core.heartbeat import Pulse
from legato_engine.core.load_frame import BUSY_INTERVAL, IDLE_INTERVAL
from legato_engine.core.outbox import split_key
from legato_engine.core.rates import Rates
from legato_engine.core.request_handler import RequestHandler
from legato_engine.core.served_tokens import ServedTokens
from legato_engine.scheduler.results import Emission, SchedulerLoad, StepResult
from legato_protocol import stream
from legato_protocol.load import Load


class LoadReporter:
    def __init__(self, handler: RequestHandler, rates: Rates, pulse: Pulse, *, max_waiting: int) -> None:
        self._handler = handler
        self._rates = rates
        self._pulse = pulse
        self._max_waiting = max_waiting
        self._told = float("-inf")
        self._changed = True
        self._steps = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._decode_rows = 0
        self._decode_batches = [0] * (len(DECODE_BATCHES) + 1)
        self._served = ServedTokens()
        self._checked = True  # the blocks' owners, since it became idle
        self._mismatch = ""

    def stepped(self, result: StepResult) -> None:
        self._steps += 1
        self._prompt_tokens += result.prompt_tokens
        if result.decode_rows:
            self._decode_rows += result.decode_rows
            self._decode_batches[bisect_left(DECODE_BATCHES, result.decode_rows)] += 1
        for request, tokens in result.prompts:
            self._served.prompt(split_key(request.id)[0], request.tenant, tokens)
        self._changed = True

    def changed(self) -> None:
        """A hand-off took blocks or gave them back."""
        self._changed = True

    def emitted(self, emission: Emission) -> None:
        request, tokens = emission.request, len(emission.sampled)
        self._output_tokens += tokens
        self._served.output(split_key(request.id)[0], request.tenant, tokens)
        self._changed = True

    def due_in(self, now: float) -> float:
        """Seconds until `status_if_due` has one."""
        interval = BUSY_INTERVAL if self._changed else IDLE_INTERVAL
        return 0.0 if self._handler.news else max(0.0, self._told + interval - now)

    def status_if_due(self, now: float) -> CoreStatus | None:
        """The state of things, if it is time to tell it again."""
        if self.due_in(now) > 0:
            return None
        quiet = not (self._changed or self._handler.news)
        self._told, self._changed, self._handler.news = now, False, False
        idle = self._handler.idle
        self._check(idle, quiet)
        load = self._handler.scheduler.load()
        order = self._handler.order
        return CoreStatus(self._load(load, now), self._totals(load), idle, load.kv_utilization, self._mismatch, order)

    def frames(self, load: Load) -> tuple[tuple[ForGateway, ...], tuple[bytes, ...]]:
        """`load` for gateways: those that differ, or one for everyone."""
        gateways = self._handler.gateways
        served = self._served.take(gateways)
        if not served:
            return (), (stream.encode(load),)
        replace = msgspec.structs.replace
        loads = {gateway: replace(load, served_elsewhere=served.get(gateway, {})) for gateway in gateways}
        return tuple([ForGateway(gateway, stream.encode(each)) for gateway, each in loads.items()]), ()

    def _check(self, idle: bool, quiet: bool) -> None:
        """Look at the owners of blocks once in each phase without work, and not before it has lasted a while: it takes
        some 0.7 µs a block, in which nothing else goes on."""
        if not idle:
            self._checked = False
        elif quiet and not self._checked:
            self._mismatch, self._checked = self._handler.scheduler.mismatch(), True

    def _load(self, load: SchedulerLoad, now: float) -> Load:
        handler, beat = self._handler, self._pulse.beat()
        waiting = load.waiting + handler.held
        credits = 0 if handler.draining else max(0, self._max_waiting - waiting) // max(1, len(handler.gateways))
        slots = handler.scheduler.limits.max_running
        return load_frame.of(
            load,
            self._rates,
            now,
            draining=handler.draining,
            credits=credits,
            slots=slots,
            step_age=0.0 if handler.scheduler.expected is None else beat.busy,
            step_expected=beat.expected,
            held=handler.held,
            adapters=handler.adapters.loaded,
        )

    def _totals(self, load: SchedulerLoad) -> CoreTotals:
        senders, receivers, agent = self._handler.senders, self._handler.receivers, self._handler.agent
        return CoreTotals(
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            output_tokens=self._output_tokens,
            received_handoffs=receivers.received if receivers is not None else 0,
            sent_handoffs=senders.sent if senders is not None else 0,
            failed_handoffs=(senders.failed if senders is not None else 0)
            + (receivers.failed if receivers is not None else 0),
            preemptions=load.preemptions,
            shared_prompt_tokens=load.shared_prompt_tokens,
            decode_rows=self._decode_rows,
            decode_batches=tuple(self._decode_batches),
            tokens_by_tenant=load.tokens_by_tenant,
            transfer=asdict(agent.counts()) if agent else {},
        )
