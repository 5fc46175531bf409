"""How busy the core is, told to gateways as `Load` and to the server for `/state` and `/metrics`."""

from dataclasses import asdict

from legato_engine.core.frames import CoreStatus, CoreTotals
from legato_engine.core.rates import Rates
from legato_engine.core.request_handler import RequestHandler
from legato_engine.scheduler.results import SchedulerLoad, StepResult
from legato_protocol.stream import Load

BUSY_INTERVAL = 0.05  # seconds between two reports while something changes
IDLE_INTERVAL = 0.5  # and while nothing does: gateways take silence for death


class LoadReporter:
    def __init__(self, handler: RequestHandler, rates: Rates, *, max_waiting: int) -> None:
        self._handler = handler
        self._rates = rates
        self._max_waiting = max_waiting
        self._told = float("-inf")
        self._changed = True
        self._steps = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._tenants: dict[str, int] = {}  # as told last
        self._checked = True  # the blocks' owners, since it became idle
        self._mismatch = ""

    def stepped(self, result: StepResult) -> None:
        self._steps += 1
        self._prompt_tokens += result.prompt_tokens
        self._changed = True

    def changed(self) -> None:
        """A hand-off took blocks or gave them back."""
        self._changed = True

    def emitted(self, tokens: int) -> None:
        self._output_tokens += tokens
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
        status = CoreStatus(self._load(load, now), self._totals(load), idle, load.kv_utilization, self._mismatch, order)
        self._tenants = load.tokens_by_tenant
        return status

    def _check(self, idle: bool, quiet: bool) -> None:
        """Look at the owners of blocks once in each phase without work, and not before it has lasted a while: it takes
        some 0.7 µs a block, in which nothing else goes on."""
        if not idle:
            self._checked = False
        elif quiet and not self._checked:
            self._mismatch, self._checked = self._handler.scheduler.mismatch(), True

    def _load(self, load: SchedulerLoad, now: float) -> Load:
        handler, before = self._handler, self._tenants
        credits = 0 if handler.draining else max(0, self._max_waiting - load.waiting) // max(1, handler.gateways)
        return Load(
            queue_tokens=load.queue_tokens,
            waiting=load.waiting,
            running=load.running,
            free_blocks=load.free_blocks,
            cached_blocks=load.cached_blocks,
            used_blocks=load.used_blocks,
            quarantined_blocks=load.quarantined_blocks,
            prefill_rate=load.prefill_cost.rate if load.prefill_cost is not None else 0.0,
            step_time=self._rates.step_time,
            draining=handler.draining,
            tokens_by_tenant={t: count for t, count in load.tokens_by_tenant.items() if before.get(t) != count},
            credits=credits,
            parked=load.parked,
            parked_tokens=load.parked_tokens,
            granted_blocks=load.granted_blocks,
            pending_blocks=load.pending_blocks,
            growth_blocks=load.growth_blocks,
            slots=handler.scheduler.limits.max_running,
            decoding=load.decoding,
            context_tokens=load.context_tokens,
            preemptions=load.preemptions,
            prefill_age=self._rates.prefill_age(now),
            decode_age=self._rates.decode_age(now),
            prefill_cost=load.prefill_cost,
            decode_cost=load.decode_cost,
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
            tokens_by_tenant=load.tokens_by_tenant,
            transfer=asdict(agent.counts()) if agent else {},
        )
