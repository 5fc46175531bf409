"""The scheduler engine: the production code of gateway and workers decides step by step; only time is virtual."""

from collections.abc import Sequence
from functools import partial

from legato_engine.policy import BUSY_INTERVAL, IDLE_INTERVAL, Emission, VirtualTime
from legato_operator.policy import Pool, roles
from legato_protocol.wire.stream import Role
from legato_simulator.engine.engine import RunSettings, SimulationEngine
from legato_simulator.engine.pods import Pods
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.scaler import Observation, Scaler
from legato_simulator.engine.scheduler.kv_handoffs import KVHandoff, KVHandoffs
from legato_simulator.engine.scheduler.operator_view import OperatorView
from legato_simulator.engine.scheduler.prompt_blocks import PromptBlocks
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledRequest, ScheduledWorker
from legato_simulator.engine.scheduler.simulated_gateway import SimulatedGateway
from legato_simulator.engine.simulated_pod import WorkerKind


class SchedulerEngine(SimulationEngine[ScheduledWorker]):
    """Messages take no time. A worker's load is reported when it is needed, at most at the production rate."""

    def __init__(self, run: RunSettings, scaler: Scaler) -> None:
        super().__init__(run, scaler)
        self._time = VirtualTime()
        self._blocks = PromptBlocks(run.workload.block, self.kinds[roles.DECODE].block_size)
        self._requests: dict[str, ScheduledRequest] = {}  # requests that have not ended
        self._awake: dict[ScheduledWorker, None] = {}  # workers that may have a step or a grant
        self._handoffs = KVHandoffs(self._time, run.handoff_rate, self._on_handoff, self._wake)
        self._gateway = SimulatedGateway(run.spec, self._time, self._handoffs, self._refuse, self._wake)
        self._view = OperatorView(run.spec, self._gateway.report([]))
        self.pods = Pods(run.spec, self.kinds, self._create)
        self._time.after(self._gateway.poll_interval, self._poll)

    @property
    def open(self) -> int:
        return len(self._requests)

    def due(self) -> float:
        return self._time.due

    def step(self) -> None:
        self._time.run(self._time.due)
        self._settle()

    def arrive(self, request: SimulatedRequest, now: float) -> None:
        self._time.run(now)
        arrival = request.arrival
        hashes = self._blocks.hashes(request.number, arrival.prompt, arrival.blocks)
        made = ScheduledRequest(request, hashes, now + self._spec.gateway.default_deadline)
        self._requests[made.id] = made
        self._report_due()
        self._gateway.offer(made)
        self._settle()

    def observation(self, now: float) -> Observation:
        self._time.run(now)
        self._report_due()
        report = self._gateway.report([(worker, now - worker.reported_at) for worker in self.pods.all])
        prompts = self._gateway.without_token
        return self._view.observation(report, self.pods, prompts, self.open - prompts, now)

    def on_plan(self, deleted: Sequence[ScheduledWorker], now: float) -> None:
        for worker in deleted:
            self._delete(worker)
        for worker in self.pods.all:
            self._report_draining(worker)
        patience = self._spec.gateway.default_deadline
        for request in [each for each in self._requests.values() if each.is_late(now, patience)]:
            self._cancel(request)
            self._refuse(request)
            self._gateway.end(request, 0)
        self._gateway.on_fleet_change()
        self._settle()

    # ── workers ──

    def _create(self, name: str, pool: Pool, kind: WorkerKind, created: float) -> ScheduledWorker:
        role: Role = pool if self._spec.disaggregated else "unified"
        worker = ScheduledWorker(name, pool, kind, created, role=role, max_length=self._run.longest)
        if worker.serves(self._time.now):
            self._gateway.add_worker(worker)
        else:
            self._time.after(worker.serves_at - self._time.now, partial(self._on_ready, worker))
        return worker

    def _on_ready(self, worker: ScheduledWorker) -> None:
        if not worker.deleted:
            self._gateway.add_worker(worker)
            self._gateway.on_fleet_change()

    def _delete(self, worker: ScheduledWorker) -> None:
        """Deletes a worker. Its requests are computed again elsewhere."""
        worker.deleted = True
        self._gateway.remove_worker(worker)
        for request in [*worker.prefilling.values(), *worker.decoding.values()]:
            request.made = request.known() - request.prompt
            self._cancel(request)
            self._gateway.requeue(request)

    def _report_draining(self, worker: ScheduledWorker) -> None:
        if worker.reported_draining != (worker.draining_since is not None):
            worker.reported_draining = not worker.reported_draining
            self._gateway.update_load(worker)
        if worker.reported_draining:
            for request in worker.decoding.values():
                if request.decoder is worker and request.simulated.first is not None:
                    self._gateway.move_away(request)

    def _wake(self, worker: ScheduledWorker) -> None:
        worker.changed = True
        self._awake[worker] = None

    def _settle(self) -> None:
        """Lets every idle worker begin a step, if it has one, and grant room to hand-offs."""
        while self._awake:
            worker = next(iter(self._awake))
            del self._awake[worker]
            if worker.deleted:
                continue
            if not worker.busy and (seconds := worker.launch(self._time.now)) is not None:
                self._time.after(seconds, partial(self._on_step_end, worker))
            if worker.role != "prefill":
                self._handoffs.grant(worker)

    def _on_step_end(self, worker: ScheduledWorker) -> None:
        if worker.deleted:
            return
        result = worker.end_step(self._time.now)
        self._gateway.apply_events(worker)
        for emission in result.emissions:
            if emission.finish is not None or not emission.index:
                self._on_emission(worker, emission)
        self._handoffs.on_step_end(worker, result.advanced, result.prefilled)
        self._wake(worker)
        self._settle()
        if self._gateway.waiting:
            self._report_soon(worker)

    # ── load reports ──

    def _report_due(self) -> None:
        """Reports the loads whose interval has passed."""
        now = self._time.now
        for worker in self.pods.all:
            if now - worker.reported_at >= (BUSY_INTERVAL if worker.changed else IDLE_INTERVAL):
                self._report(worker)

    def _report_soon(self, worker: ScheduledWorker) -> None:
        """Reports the load once its interval has passed, because a request waits for room."""
        left = worker.reported_at + BUSY_INTERVAL - self._time.now
        if left <= 0:
            self._report(worker)
            self._gateway.on_fleet_change()
        elif not worker.report_due:
            worker.report_due = True
            self._time.after(left, partial(self._on_report_due, worker))

    def _on_report_due(self, worker: ScheduledWorker) -> None:
        worker.report_due = False
        if not worker.deleted and self._gateway.waiting:
            self._report_soon(worker)

    def _poll(self) -> None:
        """Lets the gateway look for hot workers, with current loads."""
        self._report_due()
        self._gateway.on_fleet_change()
        self._time.after(self._gateway.poll_interval, self._poll)

    def _report(self, worker: ScheduledWorker) -> None:
        """Reports the load, twice after a long interval: the fleet counts sent work until the second load after it."""
        times = 2 if self._time.now - worker.reported_at >= 2 * BUSY_INTERVAL else 1
        worker.reported_at, worker.changed = self._time.now, False
        self._gateway.update_load(worker, times)

    # ── requests ──

    def _on_handoff(self, handoff: KVHandoff, emissions: Sequence[Emission]) -> None:
        """Moves a request to the receiver of its KV."""
        request = self._requests[handoff.incoming.request.id]
        request.leave(handoff.source)
        request.decoder, request.running = handoff.target, handoff.incoming.request
        if handoff.outgoing.migration:
            self._gateway.record_move(request, handoff.source)
        for emission in emissions:
            self._on_emission(handoff.target, emission)

    def _on_emission(self, worker: ScheduledWorker, emission: Emission) -> None:
        request, now = self._requests[emission.request.id], self._time.now
        if request.simulated.first is None:
            request.simulated.first = now
            self._gateway.record_first_token(request)
            if worker.reported_draining:
                self._gateway.move_away(request)
        if emission.finish is not None:
            request.simulated.done = now
            self.tally.finish(request.simulated)
            self._cancel(request)  # a migration may be in flight
            del self._requests[request.id]
            self._gateway.end(request, request.output)

    def _cancel(self, request: ScheduledRequest) -> None:
        """Cancels the request on all workers."""
        for worker in list(request.places):
            worker.scheduler.cancel(request.id, request.attempt)
            request.leave(worker)
            self._wake(worker)
        self._handoffs.end(request.id)

    def _refuse(self, request: ScheduledRequest) -> None:
        self.tally.refuse(request.simulated)
        del self._requests[request.id]
