"""The scheduler engine: gateway and workers decide as they do in production, step by step, and only time is virtual."""

from collections.abc import Sequence
from functools import partial

from legato_engine.policy import BUSY_INTERVAL, IDLE_INTERVAL, Emission, VirtualTime
from legato_operator.policy import Pool
from legato_protocol.stream import Role
from legato_simulator.engine.engine import Engine, RunSettings
from legato_simulator.engine.pods import Pods
from legato_simulator.engine.request import SimulatedRequest
from legato_simulator.engine.scaler import Observation, Scaler
from legato_simulator.engine.scheduler.kv_handoffs import KVHandoff, KVHandoffs
from legato_simulator.engine.scheduler.operator_view import OperatorView
from legato_simulator.engine.scheduler.prompt_blocks import PromptBlocks
from legato_simulator.engine.scheduler.scheduled_request import ScheduledRequest
from legato_simulator.engine.scheduler.scheduled_worker import ScheduledWorker
from legato_simulator.engine.scheduler.simulated_gateway import SimulatedGateway
from legato_simulator.engine.simulated_pod import WorkerKind


class SchedulerEngine(Engine[ScheduledWorker]):
    """Messages take no time. A worker tells its load when it is looked at, unless it has just told it."""

    def __init__(self, run: RunSettings, scaler: Scaler) -> None:
        super().__init__(run, scaler)
        self._time = VirtualTime()
        self._blocks = PromptBlocks(run.workload.block, self.kind.block_size)
        self._requests: dict[str, ScheduledRequest] = {}  # that have not ended
        self._awake: dict[ScheduledWorker, None] = {}  # that may have a step or a grant
        self._handoffs = KVHandoffs(self._time, run.handoff_rate, self._arrived, self._wake)
        self._gateway = SimulatedGateway(run.spec, self._time, self._handoffs, self._refused, self._wake)
        self._view = OperatorView(run.spec, self._gateway.report([]))
        self.pods = Pods(run.spec, self.kind, self._create)
        self._time.after(self._gateway.look, self._looks)

    @property
    def open(self) -> int:
        return len(self._requests)

    def due(self) -> float:
        return self._time.due

    def happens(self) -> None:
        self._time.run(self._time.due)
        self._settle()

    def arrive(self, request: SimulatedRequest, now: float) -> None:
        self._time.run(now)
        arrival = request.arrival
        hashes = self._blocks.hashes(request.number, arrival.prompt, arrival.blocks)
        made = ScheduledRequest(request, hashes, now + self._spec.gateway.default_deadline)
        self._requests[made.id] = made
        self._tell_due()
        self._gateway.offer(made)
        self._settle()

    def observation(self, now: float) -> Observation:
        self._time.run(now)
        self._tell_due()
        report = self._gateway.report([(worker, now - worker.told_at) for worker in self.pods.all])
        prompts = self._gateway.without_token
        return self._view.observation(report, self.pods, prompts, self.open - prompts, now)

    def planned(self, gone: Sequence[ScheduledWorker], now: float) -> None:
        for worker in gone:
            self._delete(worker)
        for worker in self.pods.all:
            self._told_whether_it_drains(worker)
        patience = self._spec.gateway.default_deadline
        for request in [each for each in self._requests.values() if each.is_late(now, patience)]:
            self._cancel(request)
            self._refused(request)
            self._gateway.ended(request, 0)
        self._gateway.turn()
        self._settle()

    # ── workers ──

    def _create(self, name: str, pool: Pool, number: int, kind: WorkerKind, created: float) -> ScheduledWorker:
        role: Role = pool if self._spec.disaggregated else "unified"
        worker = ScheduledWorker(name, pool, number, kind, created, role=role, max_length=self._run.longest)
        if worker.serves(self._time.now):
            self._gateway.greeted(worker)
        else:
            self._time.after(worker.serves_at - self._time.now, partial(self._serves, worker))
        return worker

    def _serves(self, worker: ScheduledWorker) -> None:
        if not worker.gone:
            self._gateway.greeted(worker)
            self._gateway.turn()

    def _delete(self, worker: ScheduledWorker) -> None:
        """What is left there is computed again elsewhere."""
        worker.gone = True
        self._gateway.lost(worker)
        for request in [*worker.prefilling.values(), *worker.decoding.values()]:
            request.made = request.known() - request.prompt
            self._cancel(request)
            self._gateway.again(request)

    def _told_whether_it_drains(self, worker: ScheduledWorker) -> None:
        if worker.told_draining != (worker.draining_since is not None):
            worker.told_draining = not worker.told_draining
            self._gateway.told(worker)
        if worker.told_draining:
            for request in worker.decoding.values():
                if request.decoder is worker and request.simulated.first is not None:
                    self._gateway.leaves(request)

    def _wake(self, worker: ScheduledWorker) -> None:
        worker.changed = True
        self._awake[worker] = None

    def _settle(self) -> None:
        """Every worker that is idle begins a step, if it has one, and grants what it can."""
        while self._awake:
            worker = next(iter(self._awake))
            del self._awake[worker]
            if worker.gone:
                continue
            if not worker.busy and (seconds := worker.launch(self._time.now)) is not None:
                self._time.after(seconds, partial(self._stepped, worker))
            if worker.role != "prefill":
                self._handoffs.grant(worker)

    def _stepped(self, worker: ScheduledWorker) -> None:
        if worker.gone:
            return
        result = worker.step_ended(self._time.now)
        self._gateway.stored(worker)
        for emission in result.emissions:
            if emission.finish is not None or not emission.index:
                self._emitted(worker, emission)
        self._handoffs.stepped(worker, result.advanced, result.prefilled)
        self._wake(worker)
        self._settle()
        if self._gateway.waits:
            self._tell_soon(worker)

    # ── what gateways are told ──

    def _tell_due(self) -> None:
        """As workers that tell every now and then would have, by now."""
        now = self._time.now
        for worker in self.pods.all:
            if now - worker.told_at >= (BUSY_INTERVAL if worker.changed else IDLE_INTERVAL):
                self._tell(worker)

    def _tell_soon(self, worker: ScheduledWorker) -> None:
        """Somebody waits for room."""
        left = worker.told_at + BUSY_INTERVAL - self._time.now
        if left <= 0:
            self._tell(worker)
            self._gateway.turn()
        elif not worker.tells:
            worker.tells = True
            self._time.after(left, partial(self._tells, worker))

    def _tells(self, worker: ScheduledWorker) -> None:
        worker.tells = False
        if not worker.gone and self._gateway.waits:
            self._tell_soon(worker)

    def _looks(self) -> None:
        """The gateway has what all workers told by now when it looks for hot ones."""
        self._tell_due()
        self._gateway.turn()
        self._time.after(self._gateway.look, self._looks)

    def _tell(self, worker: ScheduledWorker) -> None:
        """What was sent before the last load but one shows in it; so many there would have been."""
        times = 2 if self._time.now - worker.told_at >= 2 * BUSY_INTERVAL else 1
        worker.told_at, worker.changed = self._time.now, False
        self._gateway.told(worker, times)

    # ── requests ──

    def _arrived(self, handoff: KVHandoff, emissions: Sequence[Emission]) -> None:
        """The receiver has it."""
        request = self._requests[handoff.incoming.request.id]
        request.leave(handoff.source)
        request.decoder, request.running = handoff.target, handoff.incoming.request
        if handoff.outgoing.migration:
            self._gateway.moved(request, handoff.source)
        for emission in emissions:
            self._emitted(handoff.target, emission)

    def _emitted(self, worker: ScheduledWorker, emission: Emission) -> None:
        request, now = self._requests[emission.request.id], self._time.now
        if request.simulated.first is None:
            request.simulated.first = now
            self._gateway.has_token(request)
            if worker.told_draining:
                self._gateway.leaves(request)
        if emission.finish is not None:
            request.simulated.done = now
            self.tally.ended(request.simulated)
            self._cancel(request)  # it may be on its way elsewhere
            del self._requests[request.id]
            self._gateway.ended(request, request.output)

    def _cancel(self, request: ScheduledRequest) -> None:
        """No worker computes it any more."""
        for worker in list(request.places):
            worker.scheduler.cancel(request.id, request.attempt)
            request.leave(worker)
            self._wake(worker)
        self._handoffs.end(request.id)

    def _refused(self, request: ScheduledRequest) -> None:
        self.tally.refuse(request.simulated)
        del self._requests[request.id]
