"""Runs requests: the only owner of each, from admission to its last token.

Frames of workers come in (`links` calls), tokens go to generations, failures become new attempts. What to do is decided
by `admission`, `routing`, `redispatch` and `leg`; here it is done.
"""

import asyncio
import itertools
import logging
from dataclasses import dataclass, field
from typing import Literal, Protocol

from legato_gateway.admission.queue import Admission, Admit, Refuse, Ticket
from legato_gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    InternalFault,
    Overloaded,
    QuotaExceeded,
    SlowClient,
    WorkerFailed,
)
from legato_gateway.metrics import Metrics
from legato_gateway.relay.choice import Vocabulary
from legato_gateway.relay.dispatch import Dispatcher
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.history import History
from legato_gateway.relay.leg import Leg, Stage
from legato_gateway.relay.legs import Legs
from legato_gateway.relay.moves import Moves
from legato_gateway.relay.recovery import Recovery
from legato_gateway.relay.redispatch import RetryPolicy
from legato_gateway.request import GenerationRequest, RouteRecord
from legato_gateway.routing.choose import NoRoute
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.workers.fleet import Fleet
from legato_protocol.kv_events import KVEvent
from legato_protocol.stream import (
    Begun,
    Failed,
    FromWorker,
    HandoffReport,
    Hello,
    Load,
    Lost,
    Part,
    TokenItem,
    Tokens,
)

_log = logging.getLogger(__name__)

LONG_PROMPT = 8192  # tokens: a longer one is hashed in pieces before it is offered
NO_WORKER = "no_worker"  # drop reason: no worker of this fleet can ever take it


class Snapshots(Protocol):
    """Who can ask a worker for a snapshot of its prefix cache."""

    def request_snapshot(self, worker: str) -> None:
        """Asks, if it is connected."""


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """How clients that read slowly and workers that fail are treated."""

    slow_client: Literal["Pause", "Disconnect"] = "Pause"
    buffer_tokens: int = 1024
    retry: RetryPolicy = field(default_factory=RetryPolicy)


class Relay:
    """Implements `request.Relay` for the API and `worker_stream.StreamListener` for the workers' streams."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        index: KVIndex,
        admission: Admission,
        dispatcher: Dispatcher,
        vocabulary: Vocabulary,
        snapshots: Snapshots,
        history: History,
        metrics: Metrics,
        policy: RelayPolicy | None = None,
    ) -> None:
        self._fleet = fleet
        self._index = index
        self._admission = admission
        self._dispatcher = dispatcher
        self._vocabulary = vocabulary
        self._snapshots = snapshots
        self._history = history
        self._metrics = metrics
        self._policy = policy or RelayPolicy()
        self._legs = Legs(dispatcher, fleet, history, self._hopeless)
        self._moves = Moves(self._legs, dispatcher, metrics, self._policy.retry.max_moves)
        retry = self._policy.retry
        self._recovery = Recovery(self._legs, self._moves, fleet, metrics, retry, self._finish)
        self._serial = itertools.count()
        self._hashing: dict[asyncio.Task[None], RunningGeneration] = {}
        self._stopped: GatewayError | None = None  # what every request ends with, once this gateway stops
        self._held: dict[str, Leg] = {}  # not admitted yet, by leg id
        self._generations: dict[RunningGeneration, Leg] = {}  # with the first leg, whose id is the admission ticket's

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: GenerationRequest) -> RunningGeneration:
        """Starts `request`; whatever is wrong with it is raised by the generation."""
        generation = RunningGeneration(request, self._vocabulary, self, self._policy.buffer_tokens)
        generation.id = f"{request.id}.{next(self._serial)}"
        leg = Leg(generation.id, generation, tuple(range(request.choices)))
        self._history.add(leg.id, generation.route)
        loop = asyncio.get_running_loop()
        generation.expires = loop.time() + request.deadline
        generation.timer = loop.call_at(generation.expires, self._expire, generation)
        generation.legs.add(leg)
        self._generations[generation] = leg
        self._metrics.started()
        if self._stopped is not None:
            self._finish(generation, self._stopped)
        elif len(request.prompt) <= LONG_PROMPT:
            self._offer(leg)
        else:
            hashing = loop.create_task(self._hash_and_offer(leg))
            self._hashing[hashing] = generation
            hashing.add_done_callback(self._hashed)
        return generation

    def pause(self, generation: RunningGeneration, on: bool) -> None:
        """The client's buffer is full, or has room again."""
        if on and self._policy.slow_client == "Disconnect":
            text = f"the client left {generation.unread} tokens unread"
            self._finish(generation, SlowClient(text))
            return
        for leg in generation.legs:
            self._dispatcher.pause(leg, on)

    def leave(self, generation: RunningGeneration) -> None:
        """The client is gone: all work for it stops."""
        self._finish(generation)

    def progress(self) -> dict[RouteRecord, tuple[Stage, int]]:
        """How far every request is that has not ended, and how many tokens it has."""
        return {g.route: (g.stage, g.completion_tokens) for g in self._generations}

    @property
    def active(self) -> int:
        """Requests that have not ended."""
        return len(self._generations)

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books of all parts agree."""
        self._legs.check_integrity()
        self._admission.check_integrity()
        assert all(not generation.ended for generation in self._generations), "an ended request is kept"

    @property
    def waiting(self) -> int:
        """Legs that were admitted and have no worker."""
        return self._legs.waiting

    def end_all(self, error: GatewayError) -> None:
        """Ends every request with `error`, also those that still come: this gateway stops."""
        self._stopped = error
        for generation in list(self._generations):
            self._finish(generation, error)

    # ── workers, as `StreamListener` ────────────────────────────────────────────────────────────────────────────

    def greeted(self, worker: str, hello: Hello) -> None:
        known = self._fleet.worker(worker)
        if known is None:
            return
        if known.epoch not in ("", hello.epoch):
            self._recovery.lost(worker, f"{worker} was replaced", died=True)
        self._fleet.greeted(worker, hello)
        if known.foreign:
            _log.warning("%s is given no requests: %s", worker, known.problem)
            self._metrics.foreign(worker)
        self._index.expect(worker, hello.epoch)
        self._snapshots.request_snapshot(worker)
        self._fleet_changed()

    def received(self, worker: str, frame: FromWorker) -> None:
        if isinstance(frame, Tokens):
            for item in frame.items:
                self._token(worker, item)
        elif isinstance(frame, Begun):
            self._begun(worker, frame)
        elif isinstance(frame, Load):
            self._loaded(worker, frame)
        elif isinstance(frame, Failed):
            self._recovery.failed(worker, frame)
        elif isinstance(frame, HandoffReport):
            self._handed_over(worker, frame)
        elif isinstance(frame, Lost):
            self._core_lost(worker, frame)

    def silent(self, worker: str) -> None:
        known = self._fleet.worker(worker)
        if known is None or not known.ready:
            return  # its core is gone: that is why it says nothing
        self._fleet.gone(worker, "silent", "it sends nothing")
        self._recovery.lost(worker, f"{worker} hangs", died=False)

    def spoke(self, worker: str) -> None:
        self._fleet.spoke(worker)
        self._fleet_changed()

    def disconnected(self, worker: str, reason: str) -> None:
        known = self._fleet.worker(worker)
        if known is not None:
            drained = known.draining
            self._fleet.gone(worker, "connecting", reason)
            self._recovery.lost(worker, f"the connection to {worker} broke: {reason}", died=not drained)

    def removed(self, worker: str) -> None:
        """It is listed no more and its streams are closed."""
        self._fleet.remove(worker)
        self._index.forget(worker)

    def kv_event(self, worker: str, event: KVEvent) -> bool:
        return self._index.apply(worker, event)

    def kv_lost(self, worker: str) -> None:
        known = self._fleet.worker(worker)
        if known is not None and known.epoch:
            self._index.expect(worker, known.epoch)

    def bad_frame(self, worker: str, reason: str) -> None:
        self._metrics.bad_frame(worker)

    # ── admission ───────────────────────────────────────────────────────────────────────────────────────────────

    async def _hash_and_offer(self, leg: Leg) -> None:
        await self._dispatcher.hash_prompt(leg.generation)
        if not leg.generation.ended:
            self._offer(leg)

    def _hashed(self, task: asyncio.Task[None]) -> None:
        generation = self._hashing.pop(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.error("request %s could not be offered", generation.request.id, exc_info=fault)
            self._finish(generation, InternalFault("the gateway failed to handle this request"))

    def _offer(self, leg: Leg) -> None:
        generation, snapshot, now = leg.generation, self._fleet.snapshot(), asyncio.get_running_loop().time()
        request = generation.request
        matches = self._dispatcher.matches(leg, snapshot)
        sizes = {worker.name: worker.block_size for worker in snapshot.workers}
        cached = max((blocks * sizes[name] for name, blocks in matches.items()), default=0)
        uncached = max(len(request.prompt) - cached, 1)
        ticket = Ticket(
            request.tenant, self._dispatcher.need(leg), uncached, generation.expires, request.priority, matches
        )
        decision = self._admission.offer(ticket, snapshot, now)
        if isinstance(decision, Admit):
            self._start(leg)
        elif isinstance(decision, Refuse):
            kind = QuotaExceeded if decision.quota else Overloaded
            error = kind(decision.message, reason=decision.reason, retry_after=decision.retry_after)
            self._finish(generation, error)
        else:
            self._held[leg.id] = leg

    def _start(self, leg: Leg) -> None:
        self._held.pop(leg.id, None)
        self._legs.start(leg)

    def _hopeless(self, leg: Leg, why: NoRoute) -> None:
        self._finish(leg.generation, Overloaded(why.why, reason=NO_WORKER))

    def _fleet_changed(self) -> None:
        """Legs that wait come first, then held requests."""
        self._legs.place_waiting()
        if self._held:
            for id in self._admission.next(self._fleet.snapshot(), asyncio.get_running_loop().time()):
                self._start(self._held[id])

    # ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _begun(self, worker: str, frame: Begun) -> None:
        leg = self._legs.get(frame.id)
        if leg is not None and leg.placement is not None and leg.placement.attempt == frame.attempt:
            leg.begun.add(worker)

    def _token(self, worker: str, item: TokenItem) -> None:
        leg = self._legs.of_choice(item.id, item.choice)
        if leg is None or not leg.listens(worker, item.attempt):
            self._metrics.late_item()
            return
        if item.choice not in leg.choices:
            self._recovery.fault(leg, worker, f"{worker} sent tokens of choice {item.choice}")
            return
        generation = leg.generation
        choice = generation.choices[item.choice]
        if choice.finish is not None:
            return
        if item.index > len(choice.tokens):
            self._recovery.fault(leg, worker, f"{worker} left out tokens {len(choice.tokens)} to {item.index - 1}")
            return
        if leg.move is not None and item.attempt == leg.move.attempt:
            self._moves.completed(leg)
        if not leg.started or leg.failures:
            leg.progressed()
        before = len(choice.tokens)
        generation.take(choice, item)
        self._metrics.tokens(len(choice.tokens) - before)
        if choice.finish is not None and not generation.ended:
            self._choice_done(leg, choice.index, natural=item.finish is not None)

    def _choice_done(self, leg: Leg, choice: int, natural: bool) -> None:
        """The worker knows of an end it made itself; one by a stop string it has to be told."""
        if leg.open and not natural:
            self._dispatcher.cancel_choice(leg, choice)
        elif not leg.open:
            self._legs.drop(leg, cancel=not natural or leg.move is not None)
        if not leg.generation.unfinished:
            self._finish(leg.generation)

    # ── load and hand-offs ─────────────────────────────────────────────────────────────────────────────────────────

    def _core_lost(self, worker: str, lost: Lost) -> None:
        known = self._fleet.worker(worker)
        if known is not None and known.epoch == lost.epoch:
            self._fleet.gone(worker, "lost", lost.reason)
            self._index.forget(worker)
            self._recovery.lost(worker, f"the core of {worker} died: {lost.reason}", died=True)

    def _loaded(self, worker: str, load: Load) -> None:
        self._fleet.loaded(worker, load)
        for leg in self._legs.at(worker):
            self._admission.progress(leg.generation.id, leg.generation.completion_tokens)
            if load.draining:
                self._moves.consider(leg, worker)
        self._fleet_changed()

    def _handed_over(self, worker: str, report: HandoffReport) -> None:
        self._history.handed_over(worker, report)
        self._metrics.handed_over(report)
        leg = self._legs.get(report.id)
        if leg is not None and leg.move is not None and leg.move.attempt == report.attempt:
            self._moves.completed(leg)

    # ── ends ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _expire(self, generation: RunningGeneration) -> None:
        part, doing = self._doing(generation)
        seconds = generation.request.deadline
        self._finish(generation, DeadlineExceeded(f"{seconds:g} s were not enough: it was {doing}", part=part))

    def _doing(self, generation: RunningGeneration) -> tuple[Part, str]:
        """Which part had it, and in words."""
        legs = [leg for leg in generation.legs if leg.open]
        if any(leg.id in self._held for leg in legs):
            return "gateway", "waiting in the gateway's queue"
        stuck = next((leg for leg in legs if leg.placement is None), None)
        if stuck is not None:
            why = f" after: {stuck.last_failure.message}" if stuck.last_failure else ""
            return "gateway", f"waiting for a worker that can take it{why}"
        slow = next((leg for leg in legs if not leg.started), None)
        if slow is None:
            return "decode", "being decoded"
        return slow.part, f"waiting for its first token from {slow.busy_at()}"

    def _finish(self, generation: RunningGeneration, error: GatewayError | None = None) -> None:
        """The one way out of every request."""
        leg = self._generations.pop(generation, None)
        if leg is None:
            return
        if generation.timer is not None:
            generation.timer.cancel()
        for part in list(generation.legs):
            self._legs.drop(part, cancel=True)
        self._admission.finished(leg.id, generation.completion_tokens)
        self._admission.cancel(leg.id)
        self._held.pop(leg.id, None)
        generation.end(error)
        self._metrics.ended(generation.route.finish, isinstance(error, WorkerFailed))
