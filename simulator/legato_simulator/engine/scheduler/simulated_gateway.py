"""The scheduler engine's gateway: the real admission, routing, KV index and fleet, without sockets and clients."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from legato_engine.policy import RequestRejected, VirtualTime
from legato_gateway import policy
from legato_gateway.policy import Refuse, Route
from legato_operator.policy import Spec, step_objective
from legato_protocol.wire.demand import DemandReport, ReportedLoad
from legato_protocol.wire.kv_events import Snapshot
from legato_simulator.engine.scheduler.kv_handoffs import KVHandoffs
from legato_simulator.engine.scheduler.migrations import Migrations
from legato_simulator.engine.scheduler.scheduled_worker import MODEL, ScheduledRequest, ScheduledWorker

Refused = Callable[[ScheduledRequest], None]
Wake = Callable[[ScheduledWorker], None]


class SimulatedGateway:
    """`refused` is called with requests that are dropped, `wake` with workers that have new work."""

    def __init__(self, spec: Spec, time: VirtualTime, handoffs: KVHandoffs, refused: Refused, wake: Wake) -> None:
        self._time, self._handoffs, self._refused, self._wake = time, handoffs, refused, wake
        routing = spec.routing
        weights = policy.Weights(**routing.weights.model_dump())
        slo, when_late = policy.Objectives(spec.slo.ttft, spec.slo.tpot), spec.gateway.when_late
        objectives = policy.helped_objectives(slo, when_late) if routing.when_prefill_busy == "Local" else None
        self._policy = policy.Policy(
            routing.local_prefill_below_tokens, routing.when_prefill_unavailable, weights, objectives
        )
        self._fleet = policy.Fleet(time.clock, MODEL)
        self._index = policy.KVIndex()
        self._predicted = policy.PredictedPrefixes()  # a worker's name is also its epoch, because none restarts
        late = slo if when_late == "Refuse" else None
        self._admission = policy.Admission(policy.AdmissionLimits(objectives=objectives, refuse_beyond=late))
        self._demand = policy.Demand()
        self._workers: dict[str, ScheduledWorker] = {}
        self._offered: dict[str, ScheduledRequest] = {}  # queued in admission
        self._without_token: dict[ScheduledRequest, None] = {}
        self._waiting: dict[ScheduledRequest, None] = {}  # admitted requests without a worker
        self._rebalancing = policy.RebalancingPolicy(step_objective(spec))
        self._migrations = Migrations(time, self._fleet, self._workers, handoffs, self._policy, self._rebalancing)

    @property
    def waiting(self) -> bool:
        """True if a request waits for a change of the fleet."""
        return bool(self._admission.queued or self._waiting or self._migrations.waiting)

    @property
    def poll_interval(self) -> float:
        """Seconds between two searches for hot workers."""
        return self._rebalancing.interval

    @property
    def without_token(self) -> int:
        """Number of requests without a first token."""
        return len(self._without_token)

    # ── workers ──

    def add_worker(self, worker: ScheduledWorker) -> None:
        """Adds a worker that has become ready."""
        self._workers[worker.name] = worker
        self._fleet.add(worker.name, worker.name)
        self._fleet.greeted(worker.name, worker.hello())
        self._index.expect(worker.name, worker.name, whole=not worker.kind.windows)
        self._index.apply(worker.name, Snapshot(worker.name, 0, 0, True, b""))
        self.update_load(worker)

    def remove_worker(self, worker: ScheduledWorker) -> None:
        """Removes a worker that was deleted."""
        if self._workers.pop(worker.name, None) is not None:
            self._fleet.disconnected(worker.name, "lost", "deleted")
            self._fleet.remove(worker.name)
            self._index.forget(worker.name)

    def update_load(self, worker: ScheduledWorker, times: int = 1) -> None:
        """Takes a worker's load, `times` in a row without new work in between."""
        if worker.name not in self._workers:
            return
        load = worker.load(self._time.now)
        for _ in range(times):
            self._fleet.loaded(worker.name, load)

    def apply_events(self, worker: ScheduledWorker) -> None:
        """Applies the changes of a worker's prefix cache to the index."""
        for event in worker.take_events():
            self._index.apply(worker.name, event)

    # ── requests ──

    def offer(self, request: ScheduledRequest) -> None:
        """Offers a new request to admission."""
        snapshot, now = self._fleet.snapshot(), self._time.now
        matches = self._index.match(request.hashes)
        request.uncached = request.simulated.uncached = policy.uncached_tokens(request.prompt, matches, snapshot)
        work = policy.prompt_work(request.prompt, request.uncached, snapshot)
        ticket = policy.Ticket(request.tenant, request.need(), request.uncached, request.expires, 0, matches, work)
        decision = policy.offer(self._admission, self._demand, ticket, snapshot, now)
        if isinstance(decision, Refuse):
            self._refused(request)
            return
        self._without_token[request] = None
        if isinstance(decision, policy.Admit):
            self._dispatch(request)
        else:
            self._offered[request.id] = request

    def requeue(self, request: ScheduledRequest) -> None:
        """Lets a request that lost its worker wait for another one, with its output so far."""
        self._predicted.remove(request.id)
        self._migrations.forget(request)
        self._waiting[request] = None
        request.tried = -1

    def record_first_token(self, request: ScheduledRequest) -> None:
        """Records that a request has its first token."""
        self._predicted.shorten(request.id, self._time.now + policy.SETTLING_SECONDS)
        self._without_token.pop(request, None)
        self._admission.progress(request.id, 1)

    def move_away(self, request: ScheduledRequest) -> None:
        """Moves a request from its draining worker to another one, as soon as one can take it."""
        self._migrations.move_away(request)

    def record_move(self, request: ScheduledRequest, source: ScheduledWorker) -> None:
        """Records that a request has left `source`."""
        self._migrations.record_move(request, source.name)

    def end(self, request: ScheduledRequest, tokens: int) -> None:
        """Ends a request with this number of tokens."""
        if tokens < request.output:
            self._predicted.remove(request.id)
        self._without_token.pop(request, None)
        self._waiting.pop(request, None)
        self._migrations.forget(request)
        self._offered.pop(request.id, None)
        self._admission.finished(request.id, tokens)
        self._admission.cancel(request.id)
        self._demand.head(self._admission.obstacle, self._time.now)
        if tokens == request.output:
            self._demand.finished(tokens)

    def on_fleet_change(self) -> None:
        """Gives room first to admitted requests and migrations, then to queued requests."""
        now = self._time.now
        for request in list(self._waiting):
            if request.tried != self._fleet.openings:
                self._dispatch(request)
        self._migrations.on_fleet_change()
        if self._admission.queued:
            for id, decision in policy.queued_decisions(self._admission, self._fleet.snapshot(), now):
                self._apply(self._offered.pop(id), decision)
        self._demand.head(self._admission.obstacle, now)

    def report(self, ages: Iterable[tuple[ScheduledWorker, float]]) -> DemandReport:
        """Returns the report to the operator. `ages` are the seconds since each worker's last load."""
        now, demand, waiting = self._time.now, self._demand, policy.LengthCounter()
        for request in self._without_token:
            waiting.add(request.uncached)
        queued = [*self._offered.values(), *(each for each in self._waiting if each in self._without_token)]
        return DemandReport(
            gateway="gateway",
            uptime=0.0,  # its counters start with the first report
            arrivals=demand.arrivals.buckets(),
            refused={},
            outputs=demand.outputs.buckets(),
            output_squares=float(demand.output_squares),
            head_wait=dict(demand.head_wait(now)),
            waiting=waiting.buckets(),
            queued_requests=len(queued),
            queued_tokens=sum(request.uncached for request in queued),
            queued_prompt_tokens=sum(request.prompt for request in queued),
            workers=tuple(self._reported(worker, age) for worker, age in ages if worker.name in self._workers),
        )

    # ── inside ──

    def _apply(self, request: ScheduledRequest, decision: policy.Decision) -> None:
        if isinstance(decision, Refuse):
            self._refuse(request)
        else:
            self._dispatch(request)

    def _refuse(self, request: ScheduledRequest) -> None:
        self._refused(request)
        self.end(request, 0)

    def _reported(self, worker: ScheduledWorker, age: float) -> ReportedLoad:
        known = self._fleet.worker(worker.name)
        assert known is not None
        assert known.load is not None
        return ReportedLoad(worker.name, worker.name, worker.role, worker.kind.block_size, age, known.load)

    def _dispatch(self, request: ScheduledRequest) -> None:
        """Sends a request to workers, or lets it wait for one."""
        snapshot = self._fleet.snapshot()
        tenants = 0 if request.made else self._admission.alternating_tenants(request.tenant)
        queued = self._admission.queued_cost
        need = replace(request.need(), waited=self._waited(request), behind=queued, tenants=tenants)
        predicted = self._predicted.match(request.hashes, self._time.now)
        soon = {worker: blocks for (worker, _), blocks in predicted.items()}
        route = policy.place(need, snapshot, self._index.match(request.hashes), self._policy, soon)
        if isinstance(route, Route) and self._send(request, route, need.tokens):
            self._waiting.pop(request, None)
        elif isinstance(route, policy.NoRoute) and route.lasting and not request.made:
            self._refuse(request)
        else:
            self._waiting[request] = self._waiting.pop(request, None)
            request.tried = self._fleet.openings

    def _waited(self, request: ScheduledRequest) -> float:
        """Returns the seconds since its arrival; 0 once it has a token."""
        return 0.0 if request.made else self._time.now - request.simulated.arrival.at

    def _send(self, request: ScheduledRequest, route: Route, tokens: int) -> bool:
        decoder = self._workers[route.decode]
        request.attempt += 1
        prefiller = self._workers[route.prefill] if route.prefill is not None else None
        try:
            if prefiller is None:
                here = request.sub_request(None, tokens)
                decoder.scheduler.add(here, self._time.now)
            else:
                room = self._handoffs.new_room()
                here = request.sub_request(room, tokens)
                self._handoffs.prefill(prefiller, request.sub_request(room, tokens), decoder, here)
        except RequestRejected:
            return False
        request.running, request.decoder = here, decoder
        request.places = {decoder: None} if prefiller is None else {decoder: None, prefiller: None}
        decoder.decoding[request.id] = request
        self._predict(request, prefiller or decoder, route)
        if prefiller is None:
            self._fleet.sent(decoder.name, queued=route.to_compute, held=tokens)
        else:
            prefiller.prefilling[request.id] = request
            self._fleet.sent(prefiller.name, queued=route.to_compute, held=tokens)
            self._fleet.sent(decoder.name, queued=0, held=tokens)
            self._wake(prefiller)
        self._wake(decoder)
        return True

    def _predict(self, request: ScheduledRequest, worker: ScheduledWorker, route: Route) -> None:
        if route.to_compute >= worker.kind.block_size:
            expires = self._time.now + policy.PREDICTED_SECONDS
            self._predicted.add(request.id, worker.name, worker.name, request.hashes, expires)
