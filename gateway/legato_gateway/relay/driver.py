"""Drives sub-requests through their lifecycle table: maps frames of workers to events, and performs the actions."""

from collections.abc import Callable

from legato_gateway.admission.ticket import NO_WORKER
from legato_gateway.errors import GatewayError, Overloaded, SuspectedPoison
from legato_gateway.relay import lifecycle, movable, poison, retry
from legato_gateway.relay.attempt_place import AttemptPlace
from legato_gateway.relay.choice import OutputChoice
from legato_gateway.relay.choice_splitter import ChoiceSplitter
from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.dispatcher import SubRequestDispatcher
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.lifecycle import LifecycleAction, LifecycleEvent, Stage
from legato_gateway.relay.records.latency import LatencyRecorder
from legato_gateway.relay.retry import End, RetryPolicy
from legato_gateway.relay.sub_request import NEVER, SubRequest
from legato_gateway.routing.choose import NoRoute
from legato_gateway.routing.rebalancing import HotWorker, HotWorkers
from legato_protocol.wire.stream import Failed, HandoffReport, Part, PromptLogprobs, Started, TokenItem

E, A = LifecycleEvent, LifecycleAction
Finish = Callable[[RunningGeneration, GatewayError | None], None]


class SubRequestDriver:
    """`finish` ends a request, with an error or because all its choices are complete."""

    def __init__(
        self,
        context: RelayContext,
        dispatcher: SubRequestDispatcher,
        latency: LatencyRecorder,
        policy: RetryPolicy,
        hot: HotWorkers,
        finish: Finish,
    ) -> None:
        self._registry = context.registry
        self._dispatcher = dispatcher
        self._splitter = ChoiceSplitter(context, dispatcher, self.step)
        self._fleet = context.fleet
        self._metrics = context.metrics
        self._demand = context.demand
        self._revisions = context.revisions
        self._latency = latency
        self._policy = policy
        self._hot = hot
        self._timers = context.timers
        self._finish = finish
        self._perform: dict[LifecycleAction, Callable[[SubRequest], None]] = {
            A.DISPATCH: self._dispatch,
            A.CANCEL: self._cancel,
            A.START_TIMER: self._start_timer,
            A.STOP_TIMER: self._stop_timer,
            A.SEEK_TARGET: self._seek_target,
            A.ADOPT_TARGET: self._adopt_target,
            A.CANCEL_TARGET: self._cancel_target,
            A.DELAY_MIGRATION: self._delay_migration,
            A.FORGET: self._registry.remove,
        }

    def step(self, sub: SubRequest, event: LifecycleEvent) -> None:
        """Applies `event` to `sub` and performs the actions. Raises IllegalEvent if the table has no row for it."""
        transition = lifecycle.step(sub.stage, event)
        if sub.generation.trace is not None:
            sub.generation.trace.stepped(sub, event)
        sub.stage = transition.stage
        self._registry.staged(sub)
        for action in transition.actions:
            self._perform[action](sub)

    # ── frames of workers ───────────────────────────────────────────────────────────────────────────────────────

    def started(self, worker: str, frame: Started) -> None:
        """An attempt has its first part in a step of `worker`."""
        sub = self._registry.get(frame.id)
        if sub is not None and sub.place is not None and sub.place.attempt == frame.attempt:
            sub.started_on.add(worker)
            self._latency.started(sub.generation, frame)
            self.step(sub, E.STARTED)

    def token(self, worker: str, item: TokenItem) -> None:
        """Takes tokens of one choice. Drops known tokens and tokens of earlier attempts."""
        sub = self._registry.for_choice(item.id, item.choice)
        if sub is None or not sub.listens(worker, item.attempt):
            self._metrics.count("late_items")
            return
        if item.choice not in sub.choices:
            self._reject_message(sub, worker, f"{worker} sent tokens of choice {item.choice}")
            return
        generation = sub.generation
        if generation.lacks_scores:
            self._came_early(sub, worker, item)
            return
        choice = generation.choices[item.choice]
        if choice.finish is not None:
            return
        known = len(choice.tokens)
        if item.index > known:
            self._reject_message(sub, worker, f"{worker} left out tokens {known} to {item.index - 1}")
            return
        if sub.target is not None and item.attempt == sub.target.attempt:
            self._committed(sub)
        first = not sub.decoding
        if first:
            self._revisions.first_token(sub, self._timers.time())
            self._progressed(sub)
        generation.take(choice, item)
        if len(choice.tokens) > known:
            self._metrics.output_tokens += len(choice.tokens) - known
            self._latency.token(generation, choice, known)
        if choice.finish is not None and not generation.ended:
            self._choice_done(sub, choice, by_worker=item.finish is not None)
        if first and sub.stage is Stage.DECODING:
            self._leave_if_draining(sub)

    def scored(self, worker: str, frame: PromptLogprobs) -> None:
        """Takes logprobs of a part of a prompt. Tokens that overtook them are delivered once they are complete."""
        sub = self._registry.get(frame.id)
        place = sub.place if sub is not None else None
        if sub is None or place is None or place.attempt != frame.attempt or worker not in place.workers:
            self._metrics.count("late_items")
            return
        scores = sub.generation.scores
        wrong = "logprobs that were not requested" if scores is None else scores.take(frame.start, frame.logprobs)
        if wrong:
            self._reject_message(sub, worker, f"{worker} sent {wrong}")
        elif not sub.generation.lacks_scores:
            early, sub.early = sub.early, []
            for from_worker, item in early:
                self.token(from_worker, item)

    def failed(self, worker: str, failed: Failed) -> None:
        """A worker reports that an attempt ended. Reports of earlier attempts change nothing."""
        for sub in self._registry.matching(failed.id):
            if sub.target is not None and failed.attempt == sub.target.attempt:
                self.step(sub, E.MIGRATION_FAILED)
            elif sub.place is not None and failed.attempt == sub.place.attempt and sub.needs(worker):
                self._attempt_failed(sub, worker, failed)
            elif failed.code == "faulted":
                sub.generation.faults += 1  # the pair's other worker reported the end first
            elif worker not in sub.workers:
                self._dispatcher.cancel_at(worker, sub)  # it missed the commit of its migration and would decode on

    def handed_over(self, report: HandoffReport) -> None:
        """The receiver committed a hand-off."""
        sub = self._registry.get(report.id)
        if sub is not None:
            self._latency.handed_off(sub.generation, report)
        if sub is not None and sub.place is not None and sub.place.attempt == report.attempt:
            sub.arrived = True
        elif sub is not None and sub.target is not None and sub.target.attempt == report.attempt:
            self._committed(sub)

    def lost(self, worker: str, text: str, died: bool) -> None:
        """`worker` died or is unreachable: its sub-requests are dispatched again immediately."""
        for sub in self._registry.at(worker):
            if sub.needs(worker):
                self._worker_lost(sub, worker, text, died)
        for generation in self._registry.generations():
            if poison.confirm(generation, worker, died):
                self._refused_as_poison(generation, "prefill")

    def drained(self, worker: str) -> None:
        """Empties `worker`: its sub-requests migrate as soon as another worker can take them."""
        for sub in self._registry.at(worker):
            if sub.place is not None and sub.place.decode == worker:
                self.step(sub, E.DRAIN)

    # ── room on workers ─────────────────────────────────────────────────────────────────────────────────────────

    def offer_room(self) -> None:
        """Offers free room first to sub-requests without a worker, then to those on workers that drain or are hot."""
        if self._registry.waiting:
            self._registry.waiting.offer(self._fleet.openings, self._take_room)
        if self._registry.leaving:
            self._registry.leaving.offer(self._fleet.openings, self._migrate)
        for hot in self._hot.due(self._fleet.snapshot(), self._timers.time()):
            self._hand_on(hot)

    def _take_room(self, sub: SubRequest) -> bool:
        if not self._dispatcher.may_fit(sub):
            sub.tried = self._fleet.openings
            return False
        return self._place(sub)

    def _migrate(self, sub: SubRequest) -> bool:
        assert sub.place is not None
        source = self._fleet.worker(sub.place.decode)
        if source is None or not source.leaving:
            self._registry.leaving.discard(sub)  # it stays after all
            return True
        if self._timers.time() < sub.migrate_after:
            return True  # too early to try again
        target = self._dispatcher.migrate(sub) if self._dispatcher.may_migrate(sub) else None
        if target is None:
            sub.tried = self._fleet.openings
            return False
        self._begin_migration(sub, target)
        return True

    def _hand_on(self, hot: HotWorker) -> None:
        """Migrates one sequence of a hot worker if another worker relieves it."""
        there, now = self._registry.at(hot.worker.name), self._timers.time()
        for sub in movable.best(hot, there, self._hot.least_left, now):
            target = self._dispatcher.migrate(sub, hot)
            if target is not None:
                self._begin_migration(sub, target)
                return

    def _begin_migration(self, sub: SubRequest, target: AttemptPlace) -> None:
        self._registry.place(sub, sub.place, target)
        self.step(sub, E.MIGRATION_STARTED)

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _progressed(self, sub: SubRequest) -> None:
        """Handles the first token of an attempt: earlier failures no longer count.

        If another worker computes it, a fault was the first worker's own.
        """
        if sub.faulted_at and sub.faulted_at not in sub.workers:
            self._fleet.failed(sub.faulted_at, sub.generation.id)
        sub.failures, sub.faulted_at, sub.avoid = 0, "", set()
        sub.generation.suspected.clear()
        self._dispatcher.computed(sub)
        self.step(sub, E.FIRST_TOKEN)

    def _committed(self, sub: SubRequest) -> None:
        self.step(sub, E.COMMITTED)
        sub.started_on = set()  # the death of a worker that it has left is not its doing
        self._leave_if_draining(sub)

    def _leave_if_draining(self, sub: SubRequest) -> None:
        assert sub.place is not None
        worker = self._fleet.worker(sub.place.decode)
        if worker is not None and worker.leaving:
            self.step(sub, E.DRAIN)

    def _came_early(self, sub: SubRequest, worker: str, item: TokenItem) -> None:
        """Keeps tokens that overtook logprobs of the prompt: in a pair, they come over separate connections."""
        assert sub.place is not None
        if sub.place.prefill:
            sub.early.append((worker, item))
        else:
            self._reject_message(sub, worker, f"{worker} sent tokens before all logprobs of their prompt")

    def _choice_done(self, sub: SubRequest, choice: OutputChoice, by_worker: bool) -> None:
        """Ends a choice. A worker must be notified of an end by a stop string."""
        self._revisions.answered(sub, choice.time_per_output_token)
        if not sub.open:
            self.step(sub, E.FINISHED if by_worker else E.STOPPED)
        elif not by_worker:
            self._dispatcher.cancel_choice(sub, choice.index)
        if not sub.generation.unfinished:
            self._finish(sub.generation, None)

    def _reject_message(self, sub: SubRequest, worker: str, text: str) -> None:
        """Fails the attempt: the worker's message contradicts its state."""
        assert sub.place is not None
        self._attempt_failed(sub, worker, Failed(sub.id, sub.place.attempt, "internal", text, "decode", True))

    def _attempt_failed(self, sub: SubRequest, worker: str, failed: Failed) -> None:
        """Retries or ends `sub` after a failure that `worker` reported, or that this gateway noticed first."""
        sub.failures += 1
        sub.last_failure = failed
        if failed.code not in retry.NO_ROOM_CODES:
            self._revisions.failed(sub)
        sub.generation.faults += failed.code == "faulted"
        answer = retry.after_failure(failed, sub.failures, sub.generation.faults, self._policy)
        if isinstance(answer, End):
            self._finish(sub.generation, answer.error)
            return
        self._blame(sub, worker, failed)
        self._count_retry(failed.code)
        sub.recompute, sub.delay = answer.recompute, answer.delay
        self.step(sub, E.FAILED_OFTEN if answer.delay else E.FAILED)

    def _blame(self, sub: SubRequest, worker: str, failed: Failed) -> None:
        """Marks the worker that the next attempt should avoid."""
        assert sub.place is not None
        others = sub.place.workers - {worker}
        culprit = next(iter(others)) if failed.code == "peer_lost" and others else worker
        sub.avoid.add(culprit)
        if culprit in others and sub.ran_at(culprit):
            sub.generation.suspected.add((culprit, sub.place.epochs[culprit]))
        if failed.code == "faulted":
            sub.faulted_at = culprit
        elif failed.code in ("internal", "transfer"):
            self._fleet.failed(culprit, sub.generation.id)

    def _worker_lost(self, sub: SubRequest, worker: str, text: str, died: bool) -> None:
        """Dispatches `sub` again after its worker was lost. During a hand-off, that counts as a failed hand-off."""
        assert sub.place is not None
        if died and sub.ran_at(worker):
            sub.generation.deaths.add((worker, sub.place.epochs[worker]))
        if self._refused_as_poison(sub.generation, sub.part):
            return
        if sub.hands_off:
            (other,) = sub.place.workers - {worker}
            self._attempt_failed(sub, other, Failed(sub.id, sub.attempt, "peer_lost", text, "transfer", True))
            return
        sub.last_failure = Failed(sub.id, sub.attempt, "peer_lost", text, sub.part, True)
        self._revisions.failed(sub)
        if self._policy.on_worker_failure == "Fail":
            self._finish(sub.generation, retry.failure(sub.last_failure))
            return
        self._count_retry("worker_lost")
        self.step(sub, E.WORKER_LOST)

    def _count_retry(self, code: str) -> None:
        self._metrics.count("redispatches", code)
        if code not in retry.NO_ROOM_CODES:
            self._demand.retried(code, self._timers.time())

    def _refused_as_poison(self, generation: RunningGeneration, part: Part) -> bool:
        if refused := poison.is_poisonous(generation, self._fleet, self._policy.poison_deaths):
            self._finish(generation, SuspectedPoison("two workers died while they ran this request", part=part))
        return refused

    # ── actions ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _dispatch(self, sub: SubRequest) -> None:
        for part in self._splitter.unlike_parts(sub):
            if part.stage is Stage.WAITING:  # else an earlier part failed for good and the request ended
                self._place(part)

    def _place(self, sub: SubRequest) -> bool:
        """Places `sub` on workers if some can take it now; otherwise it keeps waiting."""
        outcome = self._dispatcher.dispatch(sub)
        if isinstance(outcome, NoRoute):
            sub.tried = NEVER if outcome.stale else self._fleet.openings
            if outcome.lasting and not sub.has_output:
                self._finish(sub.generation, Overloaded(outcome.why, reason=NO_WORKER))
            return False
        sub.started_on, sub.arrived, sub.early, sub.recompute = set(), False, [], False
        worker = self._fleet.worker(outcome.decode)
        if worker is not None and worker.hello is not None:
            sub.kv_revision = worker.hello.kv_revision
            sub.adapter_digest = self._dispatcher.digest(sub, worker.hello)
        self._registry.place(sub, outcome)
        sub.placed_at = self._timers.time()
        self._revisions.placed(sub)
        self._metrics.count("placements", outcome.prefill_at)
        sub.generation.timing.placed(outcome.attempt, bool(outcome.prefill))
        self.step(sub, E.PLACED)
        return True

    def _cancel(self, sub: SubRequest) -> None:
        self._dispatcher.cancel(sub)
        self._registry.place(sub, None)
        sub.tried = NEVER

    def _start_timer(self, sub: SubRequest) -> None:
        sub.retry = self._timers.call_at(self._timers.time() + sub.delay, self._retry, sub)

    def _retry(self, sub: SubRequest) -> None:
        sub.retry = None
        self.step(sub, E.RETRY_DUE)

    def _stop_timer(self, sub: SubRequest) -> None:
        if sub.retry is not None:
            sub.retry.cancel()
            sub.retry = None

    def _seek_target(self, sub: SubRequest) -> None:
        for part in self._splitter.split_in_place(sub) if len(sub.choices) > 1 else [sub]:
            if part.migrations_failed < self._policy.max_migrations:
                part.tried = NEVER
                self._registry.leaving.add(part)

    def _adopt_target(self, sub: SubRequest) -> None:
        """Makes the migration's target its worker."""
        before, place = sub.place, sub.target
        assert before is not None
        assert place is not None
        assert place.migrates is not None
        self._registry.place(sub, place)
        sub.migrations_failed = 0
        self._hot.moved(sub, before.decode, self._timers.time())
        record = sub.generation.route
        record.decode, record.attempt = place.decode, max(record.attempt, place.attempt)
        record.add_workers(place.decode)
        self._metrics.count("migrations", place.migrates)

    def _cancel_target(self, sub: SubRequest) -> None:
        """It stays at its source, under the old attempt."""
        self._dispatcher.cancel_target(sub)
        self._registry.place(sub, sub.place)

    def _delay_migration(self, sub: SubRequest) -> None:
        assert sub.place is not None
        self._hot.failed(sub.place.decode, self._timers.time())
        sub.migrations_failed += 1
        sub.migrate_after = self._timers.time() + retry.migration_delay(sub.migrations_failed, self._policy)
        self._seek_target(sub)
