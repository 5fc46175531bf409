"""Runs requests: the only owner of each, from admission to its last token.

`admission`, `routing`, `retry` and `lifecycle` decide; `driver` and this file carry out their decisions. Frames of
workers come in through `listener` and change the state immediately, and tokens go to clients immediately. Work that
follows from a changed fleet is done in one pass for all frames received.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from legato_gateway import policy
from legato_gateway.admission.ticket import TOO_MANY_CHOICES, Admit, Decision, Refuse, Ticket
from legato_gateway.errors import (
    BadRequest,
    DeadlineExceeded,
    GatewayError,
    InternalFault,
    Overloaded,
    QuotaExceeded,
    Refused,
    SlowClient,
    WorkerFailed,
)
from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.dispatcher import SubRequestDispatcher
from legato_gateway.relay.driver import SubRequestDriver
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.lifecycle import LifecycleEvent, Stage
from legato_gateway.relay.listener import WorkerListener
from legato_gateway.relay.records.latency import LatencyRecorder
from legato_gateway.relay.records.timing import RequestTiming
from legato_gateway.relay.records.trace import RequestTracer
from legato_gateway.relay.retry import RetryPolicy
from legato_gateway.relay.sub_request import SubRequest
from legato_gateway.request import GenerationRequest, RouteRecord
from legato_gateway.routing.canary_share import why_unable
from legato_gateway.routing.rebalancing import HotWorkers, RebalancingPolicy
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_gateway.workers.links import Links
from legato_protocol.wire.canary import Canary, CanaryReport
from legato_protocol.wire.stream import Part

_log = logging.getLogger(__name__)

LONG_PROMPT = 8192  # tokens: a longer one is hashed in pieces before it is offered
BETWEEN_PASSES = 0.005  # seconds: 200 passes a second are enough, however many frames come
REST = 4  # after a long pass, tokens get this multiple of its duration before the next


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """Treatment of slow clients, failed workers and hot workers; without `rebalancing`, hot workers are ignored."""

    slow_client: Literal["Pause", "Disconnect"] = "Pause"
    buffer_tokens: int = 1024
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    rebalancing: RebalancingPolicy | None = None
    jitter: Callable[[], float] = random.random  # from 0 to 1: keeps gateways from relieving a worker together


class RequestRelay:
    """Implements `request.Relay` for the API. `workers` listens to the workers' streams."""

    def __init__(
        self,
        context: RelayContext,
        dispatcher: SubRequestDispatcher,
        vocabulary: ModelTokenizer,
        links: Links,
        policy: RelayPolicy | None = None,
        tracer: RequestTracer | None = None,
    ) -> None:
        self._fleet = context.fleet
        self._admission = context.admission
        self._dispatcher = dispatcher
        self._vocabulary = vocabulary
        self._history = context.history
        self._metrics = context.metrics
        self._timers = context.timers
        self._policy = policy or RelayPolicy()
        self._tracer = tracer
        self._registry = context.registry
        self._latency = LatencyRecorder(context.metrics, context.timers)
        self.demand = context.demand
        self._revisions = context.revisions
        hot = HotWorkers(self._policy.rebalancing, self._policy.jitter)
        self._driver = SubRequestDriver(context, dispatcher, self._latency, self._policy.retry, hot, self._finish)
        self.workers = WorkerListener(context, self._driver, links, self._fleet_changed)
        self._serial = itertools.count()
        self._hashing: dict[asyncio.Task[None], RunningGeneration] = {}
        self._stopped: GatewayError | None = None  # every request's error, once this gateway stops
        self._generations: dict[str, RunningGeneration] = {}  # by id
        self._pass_due = False
        self._next_pass = 0.0  # earliest time

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: GenerationRequest) -> RunningGeneration:
        """Starts `request`. Its errors are raised by the generation."""
        generation = RunningGeneration(request, self._vocabulary, self, self._policy.buffer_tokens)
        generation.id = f"{request.id}.{next(self._serial)}"
        self._history.add(generation.id, generation.route)
        now = self._timers.time()
        generation.timing = RequestTiming(now - request.elapsed)
        generation.trace = self._tracer.begin(request) if self._tracer is not None else None
        generation.ends = now + request.deadline
        self._watch(generation)
        self._generations[generation.id] = generation
        self._metrics.started()
        sub = SubRequest(generation.id, generation, tuple(range(request.choices)))
        self._registry.add(sub)
        if self._stopped is not None:
            self._finish(generation, self._stopped)
        elif len(request.prompt) <= LONG_PROMPT:
            self._offer(sub)
        else:
            hashing = asyncio.get_running_loop().create_task(self._hash_and_offer(sub))
            self._hashing[hashing] = generation
            hashing.add_done_callback(self._hashed)
        return generation

    def pause(self, generation: RunningGeneration, on: bool) -> None:
        """Pauses or resumes a request: its client's buffer is full, or has room again."""
        (self._latency.paused if on else self._latency.resumed)(generation)
        if on and self._policy.slow_client == "Disconnect":
            text = f"the client left {generation.unread} tokens unread"
            self._finish(generation, SlowClient(text))
            return
        for sub in self._registry.sub_requests(generation):
            self._dispatcher.pause(sub, on)

    def leave(self, generation: RunningGeneration) -> None:
        """Stops all work for a request whose client disconnected."""
        self._finish(generation)

    def end_all(self, error: GatewayError) -> None:
        """Ends every request with `error`, and all that still arrive: this gateway stops."""
        self._stopped = error
        for generation in list(self._generations.values()):
            self._finish(generation, error)

    # ── state ───────────────────────────────────────────────────────────────────────────────────────────────────

    def progress(self) -> dict[RouteRecord, tuple[Stage, int]]:
        """Returns each request's stage, which is the least advanced of its sub-requests, and its output tokens."""
        return {g.route: (self._stage(g), g.completion_tokens) for g in self._generations.values()}

    def sub_requests(self, generation: RunningGeneration) -> list[SubRequest]:
        """Returns the request's sub-requests in progress."""
        return self._registry.sub_requests(generation)

    def without_token(self) -> list[RunningGeneration]:
        """Returns the requests that have no token yet."""
        return [generation for generation in self._generations.values() if not generation.has_token]

    def unplaced(self) -> list[RunningGeneration]:
        """Returns the requests that have neither a token nor a worker."""
        return [g for g in self.without_token() if all(sub.place is None for sub in self._registry.sub_requests(g))]

    @property
    def active(self) -> int:
        """Requests in progress."""
        return len(self._generations)

    @property
    def waiting(self) -> int:
        """Admitted sub-requests without a worker."""
        return len(self._registry.waiting)

    def set_canary(self, canary: Canary | None) -> None:
        """Starts to share requests with a canary's new workers, or ends that. The same canary again changes nothing."""
        if canary != self._fleet.canary:
            self._fleet.set_canary(canary)
            self._revisions.reset(self._timers.time())

    def canary(self) -> CanaryReport | None:
        """Returns the comparison of the revisions so far, or None without a canary."""
        canary = self._fleet.canary
        if canary is None:
            return None
        obstacle = why_unable(canary, self._fleet.snapshot(), new=True) or ""
        return CanaryReport(canary, self._revisions.report(False), self._revisions.report(True), obstacle)

    def check_integrity(self) -> None:
        """Raises AssertionError unless all parts are consistent."""
        self._registry.check_integrity()
        self._admission.check_integrity()
        self._dispatcher.check_integrity()
        running = self._generations.values()
        assert all(not generation.ended for generation in running), "an ended request is kept"
        assert all(self._registry.sub_requests(generation) for generation in running), "a request has no sub-request"

    def _stage(self, generation: RunningGeneration) -> Stage:
        order = list(Stage)
        return min((sub.stage for sub in self._registry.sub_requests(generation)), key=order.index)

    # ── admission ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _hash_and_offer(self, sub: SubRequest) -> None:
        await self._dispatcher.hash_prompt(sub.generation)
        if not sub.generation.ended:
            self._offer(sub)

    def _hashed(self, task: asyncio.Task[None]) -> None:
        generation = self._hashing.pop(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("admission of request %s failed", generation.request.id, exc_info=fault)
            self._finish(generation, InternalFault("the gateway failed to handle this request"))

    def _offer(self, sub: SubRequest) -> None:
        generation, snapshot, now = sub.generation, self._fleet.snapshot(), self._timers.time()
        request = generation.request
        matches = self._dispatcher.matches(sub, snapshot)
        generation.uncached = policy.uncached_tokens(len(request.prompt), matches, snapshot)
        need = self._dispatcher.need(sub)
        work = policy.prompt_work(len(request.prompt), generation.uncached, snapshot)
        ticket = Ticket(request.tenant, need, generation.uncached, generation.expires, request.priority, matches, work)
        decision = policy.offer(self._admission, self.demand, ticket, snapshot, now)
        self._apply(sub, decision)

    def _apply(self, sub: SubRequest, decision: Decision) -> None:
        """Starts, queues or ends a request."""
        if isinstance(decision, Admit):
            sub.generation.admit()
            self._driver.step(sub, LifecycleEvent.ADMITTED)
        elif isinstance(decision, Refuse):
            self._finish(sub.generation, _refusal(decision))
        else:
            self._driver.step(sub, LifecycleEvent.ENQUEUED)

    # ── passes over the fleet ───────────────────────────────────────────────────────────────────────────────────

    def _fleet_changed(self) -> None:
        """Schedules a pass: after the frames that are here already, and not too soon after the last one."""
        if self._pass_due:
            return
        self._pass_due = True
        if self._timers.time() >= self._next_pass:
            self._timers.call_soon(self._pass)
        else:
            self._timers.call_at(self._next_pass, self._pass)

    def _pass(self) -> None:
        """Gives free room to sub-requests in progress first, then admits queued requests."""
        self._pass_due = False
        start = self._timers.time()
        self._driver.offer_room()
        if self._admission.queued:
            for id, decision in policy.queued_decisions(self._admission, self._fleet.snapshot(), start):
                (sub,) = self._registry.sub_requests(self._generations[id])
                self._apply(sub, decision)
        now = self._timers.time()
        self.demand.head(self._admission.obstacle, now)
        self._next_pass = now + max(BETWEEN_PASSES, REST * (now - start))

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, generation: RunningGeneration) -> None:
        generation.read_before = generation.read_tokens
        generation.expires = min(generation.ends, generation.progressed + generation.request.patience)
        generation.timer = self._timers.call_at(generation.expires, self._expire, generation)

    def _expire(self, generation: RunningGeneration) -> None:
        now, request = self._timers.time(), generation.request
        if generation.paused and generation.read_tokens > generation.read_before:
            generation.read_at = now
        if now < min(generation.ends, generation.progressed + request.patience):
            self._watch(generation)  # a token came or was read meanwhile
            return
        ended = now >= generation.ends
        late = f"{request.deadline:g} s were not enough" if ended else f"no token came for {request.patience:g} s"
        part, doing = self._doing(generation)
        for sub in self._registry.sub_requests(generation):
            self._revisions.failed(sub)
        self._finish(generation, DeadlineExceeded(f"{late}: it was {doing}", part=part))

    def _doing(self, generation: RunningGeneration) -> tuple[Part, str]:
        """Returns the part of the system that has it, and its state in words."""
        subs = self._registry.sub_requests(generation)
        if any(sub.stage in (Stage.ARRIVED, Stage.PENDING) for sub in subs):
            return "gateway", "waiting in the gateway's queue"
        stuck = next((sub for sub in subs if sub.place is None), None)
        if stuck is not None:
            why = f" after: {stuck.last_failure.message}" if stuck.last_failure else ""
            return "gateway", f"waiting for a worker that can take it{why}"
        if generation.paused:
            return "gateway", "waiting for its client to read"
        slow = next((sub for sub in subs if not sub.decoding), None)
        if slow is None:
            return "decode", "being decoded"
        return slow.part, f"waiting for its first token from {slow.computed_by()}"

    def _finish(self, generation: RunningGeneration, error: GatewayError | None = None) -> None:
        """Ends a request. Every request ends here."""
        if self._generations.pop(generation.id, None) is None:
            return
        if generation.timer is not None:
            generation.timer.cancel()
        for sub in self._registry.sub_requests(generation):
            self._driver.step(sub, LifecycleEvent.STOPPED)
        self._admission.finished(generation.id, generation.completion_tokens)
        self._admission.cancel(generation.id)
        self.demand.head(self._admission.obstacle, self._timers.time())
        if isinstance(error, Refused):
            self.demand.count_refusal(error.reason)
        generation.end(error)
        self._count_lengths(generation, generation.route.finish if error else "cancelled")
        self._metrics.ended(generation.route.finish, isinstance(error, WorkerFailed))
        self._latency.ended(generation)
        if generation.trace is not None:
            generation.trace.ended(generation.route, generation.usage, error)

    def _count_lengths(self, generation: RunningGeneration, cut_off: str) -> None:
        """Counts the lengths of its choices. `cut_off` is the finish of unfinished ones."""
        most = generation.request.params.max_tokens
        for choice in generation.choices:
            if choice.finish is not None:
                self.demand.finished(len(choice.tokens))
            if choice.tokens:
                self._metrics.used_limit(choice.finish or cut_off, len(choice.tokens) / most)


def _refusal(decision: Refuse) -> GatewayError:
    if decision.reason == TOO_MANY_CHOICES:
        return BadRequest(decision.message, param="n")
    kind = QuotaExceeded if decision.quota else Overloaded
    return kind(decision.message, reason=decision.reason, retry_after=decision.retry_after)
