"""Runs requests: the only owner of each, from admission to its last token.

Frames of workers come in (`links` calls), tokens go to generations, failures become new attempts. What to do is decided
by `admission`, `routing`, `redispatch` and `leg`; here it is done.
"""

import asyncio
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from legato_gateway import redispatch
from legato_gateway.admission import Admission, Admit, Refuse, Ticket
from legato_gateway.choice import Vocabulary
from legato_gateway.dispatch import Dispatcher
from legato_gateway.errors import (
    DeadlineExceeded,
    GatewayError,
    Overloaded,
    QuotaExceeded,
    SlowClient,
    SuspectedPoison,
    WorkerFailed,
)
from legato_gateway.fleet import Fleet
from legato_gateway.generation import RunningGeneration
from legato_gateway.history import History
from legato_gateway.kv_index import KVIndex
from legato_gateway.leg import Leg
from legato_gateway.metrics import Metrics
from legato_gateway.redispatch import Again, End, RetryPolicy
from legato_gateway.request import GenerationRequest
from legato_gateway.routing.choose import NoRoute
from legato_protocol.kv_events import KVEvent
from legato_protocol.stream import (
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

NO_WORKER = "no_worker"  # drop reason: no worker of this fleet can ever take it
TRIES_PER_CHANGE = 16  # legs without a place that are offered one whenever the fleet changes


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
        self._serial = itertools.count()
        self._legs: dict[str, Leg] = {}
        self._at: dict[str, dict[Leg, None]] = {}  # by worker, in order of dispatch
        self._held: dict[str, Leg] = {}  # not admitted yet, by leg id
        self._waiting: dict[Leg, None] = {}  # admitted, without a worker
        self._generations: dict[RunningGeneration, Leg] = {}  # with the first leg, whose id is the admission ticket's
        self._idle = asyncio.Event()
        self._idle.set()

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, request: GenerationRequest) -> RunningGeneration:
        """Starts `request`; whatever is wrong with it is raised by the generation."""
        generation = RunningGeneration(request, self._vocabulary, self, self._policy.buffer_tokens)
        leg = Leg(f"{request.id}.{next(self._serial)}", generation, tuple(range(request.choices)))
        self._history.add(leg.id, generation.route)
        loop = asyncio.get_running_loop()
        generation.expires = loop.time() + request.deadline
        generation.timer = loop.call_at(generation.expires, self._expire, generation)
        generation.legs.add(leg)
        self._generations[generation] = leg
        self._idle.clear()
        self._metrics.started()
        self._offer(leg, loop.time())
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

    @property
    def active(self) -> int:
        """Requests that have not ended."""
        return len(self._generations)

    @property
    def waiting(self) -> int:
        """Legs that were admitted and have no worker."""
        return len(self._waiting)

    async def wait_idle(self) -> None:
        """Returns once no request is under way."""
        await self._idle.wait()

    def end_all(self, error: GatewayError) -> None:
        """Ends every request with `error`: this gateway stops."""
        for generation in list(self._generations):
            self._finish(generation, error)

    # ── workers, as `StreamListener` ────────────────────────────────────────────────────────────────────────────

    def greeted(self, worker: str, hello: Hello) -> None:
        known = self._fleet.worker(worker)
        if known is None:
            return
        if known.epoch not in ("", hello.epoch):
            self._lose(worker, f"{worker} was replaced", died=True)
        self._fleet.greeted(worker, hello)
        self._index.expect(worker, hello.epoch)
        self._snapshots.request_snapshot(worker)
        self._place_waiting()

    def received(self, worker: str, frame: FromWorker) -> None:
        if isinstance(frame, Tokens):
            for item in frame.items:
                self._token(worker, item)
        elif isinstance(frame, Load):
            self._loaded(worker, frame)
        elif isinstance(frame, Failed):
            self._failed(worker, frame)
        elif isinstance(frame, HandoffReport):
            self._handed_over(worker, frame)
        elif isinstance(frame, Lost):
            self._core_lost(worker, frame)

    def silent(self, worker: str) -> None:
        self._fleet.gone(worker, "silent", "it sends nothing")
        self._lose(worker, f"{worker} hangs", died=False)

    def spoke(self, worker: str) -> None:
        self._fleet.spoke(worker)
        self._place_waiting()

    def disconnected(self, worker: str, reason: str) -> None:
        known = self._fleet.worker(worker)
        if known is not None:
            drained = known.draining
            self._fleet.gone(worker, "connecting", reason)
            self._lose(worker, f"the connection to {worker} broke: {reason}", died=not drained)

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

    def _offer(self, leg: Leg, now: float) -> None:
        generation, snapshot = leg.generation, self._fleet.snapshot()
        request = generation.request
        matches = self._dispatcher.matches(leg, snapshot)
        sizes = {worker.name: worker.block_size for worker in snapshot.workers}
        cached = max((blocks * sizes[name] for name, blocks in matches.items()), default=0)
        uncached = max(len(request.prompt) - cached, 1)
        ticket = Ticket(request.tenant, self._dispatcher.need(leg), uncached, generation.expires, request.priority)
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
        self._legs[leg.id] = leg
        self._place(leg)

    # ── placing legs ────────────────────────────────────────────────────────────────────────────────────────────

    def _place(self, leg: Leg) -> bool:
        """On a worker, if one can take it; otherwise it waits for the fleet to change."""
        leg.retry = None
        outcome = self._dispatcher.dispatch(leg)
        if isinstance(outcome, NoRoute):
            if outcome.lasting and not leg.has_output:
                self._finish(leg.generation, Overloaded(outcome.why, reason=NO_WORKER))
            else:
                self._waiting[leg] = None
            return False
        self._waiting.pop(leg, None)
        leg.placement, leg.started, leg.recompute = outcome, False, False
        revision = self._fleet.worker(outcome.decode)
        leg.kv_revision = revision.hello.kv_revision if revision and revision.hello else leg.kv_revision
        self._note_place(leg)
        return True

    def _place_waiting(self) -> None:
        """The fleet changed: legs that wait come first, then held requests."""
        misses = []
        for leg in list(itertools.islice(self._waiting, 4 * TRIES_PER_CHANGE)):
            if leg in self._waiting and not self._place(leg) and leg in self._waiting:
                misses.append(leg)
                if len(misses) >= TRIES_PER_CHANGE:
                    break
        for leg in misses:  # to the end, so that one that fits nowhere holds up nobody
            self._waiting[leg] = self._waiting.pop(leg)
        if self._held:
            for id in self._admission.next(self._fleet.snapshot(), asyncio.get_running_loop().time()):
                self._start(self._held[id])

    def _note_place(self, leg: Leg) -> None:
        for worker in leg.workers:
            self._at.setdefault(worker, {})[leg] = None

    def _forget_place(self, leg: Leg, workers: Iterable[str]) -> None:
        for worker in workers:
            legs = self._at.get(worker)
            if legs is not None:
                legs.pop(leg, None)

    # ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _token(self, worker: str, item: TokenItem) -> None:
        leg = self._legs.get(item.id)
        if leg is None or not leg.listens(worker, item.attempt):
            self._metrics.late_item()
            return
        if item.choice not in leg.choices:
            self._fault(leg, f"{worker} sent tokens of choice {item.choice}")
            return
        generation = leg.generation
        choice = generation.choices[item.choice]
        if choice.finish is not None:
            return
        if item.index > len(choice.tokens):
            self._fault(leg, f"{worker} left out tokens {len(choice.tokens)} to {item.index - 1}")
            return
        if leg.move is not None and item.attempt == leg.move.attempt:
            self._moved(leg)
        if not leg.started or leg.failures:
            leg.progressed()
        before = len(choice.tokens)
        generation.take(choice, item)
        self._metrics.tokens(len(choice.tokens) - before)
        if choice.finish is not None and not generation.ended:
            self._choice_done(leg, natural=item.finish is not None)

    def _choice_done(self, leg: Leg, natural: bool) -> None:
        """The worker knows of an end it made itself; one by a stop string it has to be told."""
        if not leg.open:
            self._drop(leg, cancel=not natural or leg.move is not None)
        if not leg.generation.unfinished:
            self._finish(leg.generation)

    def _fault(self, leg: Leg, text: str) -> None:
        assert leg.placement is not None
        attempt = leg.placement.attempt
        self._failed(leg.placement.decode, Failed(leg.id, attempt, "internal", text, "decode", True))

    # ── failures ────────────────────────────────────────────────────────────────────────────────────────────────

    def _failed(self, worker: str, failed: Failed) -> None:
        leg = self._legs.get(failed.id)
        if leg is None:
            return
        if leg.move is not None and failed.attempt == leg.move.attempt:
            self._move_failed(leg)
        elif leg.placement is not None and failed.attempt == leg.placement.attempt and leg.touched_by(worker):
            self._attempt_failed(leg, worker, failed)

    def _attempt_failed(self, leg: Leg, worker: str, failed: Failed) -> None:
        leg.failures += 1
        leg.last_failure = failed
        answer = redispatch.after_failure(failed, leg.failures, self._policy.retry)
        if isinstance(answer, End):
            self._finish(leg.generation, answer.error)
            return
        self._blame(leg, worker, failed)
        self._metrics.redispatched(failed.code)
        leg.recompute = answer.recompute
        self._again(leg, answer)

    def _blame(self, leg: Leg, worker: str, failed: Failed) -> None:
        """Which worker the next attempt stays away from, if it can."""
        assert leg.placement is not None
        others = leg.placement.workers - {worker}
        culprit = next(iter(others)) if failed.code == "peer_lost" and others else worker
        leg.avoid.add(culprit)
        if failed.code in ("internal", "transfer"):
            self._fleet.failed(culprit)

    def _lose(self, worker: str, text: str, died: bool) -> None:
        """Everything at `worker` is gone, or cannot be reached: it goes on elsewhere at once."""
        for leg in list(self._at.get(worker, ())):
            if leg.move is not None and leg.move.decode == worker:
                self._clear_move(leg)
            if not leg.touched_by(worker):
                continue
            if died and leg.busy_at() == worker:
                self._note_death(leg, worker)
            if self._poisonous(leg.generation):
                error = SuspectedPoison("two workers died while they ran this request", part="decode")
                self._finish(leg.generation, error)
            elif leg.placement is not None:
                leg.last_failure = Failed(leg.id, leg.attempt, "peer_lost", text, self._part(leg), True)
                self._metrics.redispatched("worker_lost")
                self._again(leg, Again(0.0))

    def _note_death(self, leg: Leg, worker: str) -> None:
        assert leg.placement is not None
        leg.generation.deaths.add((worker, leg.placement.epochs[worker]))

    def _poisonous(self, generation: RunningGeneration) -> bool:
        """A broken connection looks like a death until the same epoch is back."""
        dead = [death for death in generation.deaths if not self._fleet.lives(*death)]
        return len(dead) >= self._policy.retry.poison_deaths

    def _again(self, leg: Leg, again: Again) -> None:
        """Ends the current attempt everywhere and starts over with what the client has."""
        self._dispatcher.cancel(leg)
        self._forget_place(leg, leg.workers)
        leg.placement = leg.move = None
        leg.started = False
        for part in self._split(leg):
            if again.delay:
                loop = asyncio.get_running_loop()
                part.retry = loop.call_later(again.delay, self._place, part)
            else:
                self._place(part)

    def _split(self, leg: Leg) -> list[Leg]:
        """One leg per unfinished choice, once choices differ."""
        if len(leg.choices) == 1 or not any(leg.generation.choices[choice].tokens for choice in leg.choices):
            return [leg]
        parts = [self._part_of(leg, choice) for choice in leg.open]
        self._drop(leg, cancel=False)
        for part in parts:
            self._legs[part.id] = part
            leg.generation.legs.add(part)
        return parts

    def _part_of(self, leg: Leg, choice: int) -> Leg:
        part = Leg(f"{leg.id}/{choice}", leg.generation, (choice,), leg.attempt)
        part.recompute, part.kv_revision, part.avoid = leg.recompute, leg.kv_revision, set(leg.avoid)
        part.failures, part.last_failure = leg.failures, leg.last_failure
        self._history.also(part.id, leg.generation.route)
        return part

    def _core_lost(self, worker: str, lost: Lost) -> None:
        known = self._fleet.worker(worker)
        if known is not None and known.epoch == lost.epoch:
            self._fleet.gone(worker, "lost", lost.reason)
            self._index.forget(worker)
            self._lose(worker, f"the core of {worker} died: {lost.reason}", died=True)

    # ── load and drains ─────────────────────────────────────────────────────────────────────────────────────────

    def _loaded(self, worker: str, load: Load) -> None:
        self._fleet.loaded(worker, load)
        for leg in list(self._at.get(worker, ())):
            self._admission.progress(self._ticket(leg.generation), leg.generation.completion_tokens)
            if load.draining and self._movable(leg, worker):
                leg.move = self._dispatcher.move(leg)
                self._note_place(leg)
        self._place_waiting()

    def _movable(self, leg: Leg, worker: str) -> bool:
        """Running there alone: a forked sequence shares blocks with its siblings and finishes where it is."""
        placed = leg.placement is not None and leg.placement.decode == worker and leg.started and leg.move is None
        return placed and len(leg.choices) == 1 and leg.moves_failed < self._policy.retry.max_moves

    def _moved(self, leg: Leg) -> None:
        """The receiver has it: the sender matters no more."""
        before = leg.workers
        leg.moved()
        self._forget_place(leg, before - leg.workers)
        record = leg.generation.route
        assert leg.placement is not None
        record.decode, record.attempt = leg.placement.decode, max(record.attempt, leg.placement.attempt)
        self._metrics.moved()

    def _move_failed(self, leg: Leg) -> None:
        leg.moves_failed += 1
        self._clear_move(leg)

    def _clear_move(self, leg: Leg) -> None:
        """It goes on at its old place under its old attempt."""
        move = leg.move
        assert move is not None
        self._dispatcher.cancel_move(leg, move)
        leg.move = None
        self._forget_place(leg, move.workers - leg.workers)

    def _handed_over(self, worker: str, report: HandoffReport) -> None:
        self._history.handed_over(worker, report)
        self._metrics.handed_over(report)
        leg = self._legs.get(report.id)
        if leg is not None and leg.move is not None and leg.move.attempt == report.attempt:
            self._moved(leg)

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
        return self._part(slow), f"waiting for its first token from {slow.busy_at()}"

    def _part(self, leg: Leg) -> Part:
        if leg.placement is None:
            return "gateway"
        if leg.started:
            return "decode"
        if leg.last_failure is not None and leg.last_failure.code == "transfer":
            return "transfer"
        return "prefill"

    def _finish(self, generation: RunningGeneration, error: GatewayError | None = None) -> None:
        """The one way out of every request."""
        leg = self._generations.pop(generation, None)
        if leg is None:
            return
        if generation.timer is not None:
            generation.timer.cancel()
        for part in list(generation.legs):
            self._drop(part, cancel=True)
        self._admission.finished(leg.id, generation.completion_tokens)
        self._admission.cancel(leg.id)
        self._held.pop(leg.id, None)
        generation.end(error)
        self._metrics.ended(generation.route.finish, isinstance(error, WorkerFailed))
        if not self._generations:
            self._idle.set()

    def _drop(self, leg: Leg, cancel: bool) -> None:
        """The leg is over."""
        if cancel:
            self._dispatcher.cancel(leg)
        if leg.retry is not None:
            leg.retry.cancel()
        self._forget_place(leg, leg.workers)
        self._legs.pop(leg.id, None)
        self._waiting.pop(leg, None)
        leg.generation.legs.discard(leg)
        leg.placement = leg.move = None

    def _ticket(self, generation: RunningGeneration) -> str:
        return self._generations[generation].id
