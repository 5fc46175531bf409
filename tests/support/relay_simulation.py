"""A relay among scripted workers in virtual time, without sockets and without an event loop.

Frames to a worker arrive in order unless its connection breaks, as over TCP. Frames from a worker may be lost, doubled,
late or in another order, which no TCP does: the relay has to come through that, too.
"""

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

from legato_gateway.admission.limits import AdmissionLimits, Quota
from legato_gateway.admission.queue import Admission
from legato_gateway.metrics.gateway_metrics import Metrics
from legato_gateway.relay.context import RelayContext
from legato_gateway.relay.dispatcher import SubRequestDispatcher
from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.relay.records.history import History
from legato_gateway.relay.relay import RelayPolicy, RequestRelay
from legato_gateway.relay.retry import RetryPolicy
from legato_gateway.routing.choose import Policy
from legato_gateway.routing.kv_index import KVIndex
from legato_gateway.routing.rebalancing import RebalancingPolicy
from legato_gateway.routing.scorers import Objectives
from legato_gateway.testing.fake_engine import Fabric, FakeEngine, ScriptedRefusal
from legato_gateway.workers.fleet import Fleet
from legato_protocol.sampling.parameters import LATER_PARAMS
from legato_protocol.wire import block_hash, kv_events
from legato_protocol.wire.load import DecodeCoefficients, Load
from legato_protocol.wire.stream import Cancel, Handoff, HandoffReport, Hello, Lost, Pause, Split, TokenItem, Tokens

METRICS = Metrics()  # one for all schedules: registries are slow to make
GATEWAY = "gateway"
ROLES = (("p", "d", "d"), ("u", "u"), ("p", "u", "d"), ("u", "u", "u"), ("p", "p", "d", "d", "d"))
NAMES = {"p": "prefill", "d": "decode", "u": "unified"}
COST = DecodeCoefficients(0.01, 0.02, 0.0)  # of every worker
BRISK = RebalancingPolicy(  # 3 are hot
    0.06, interval=0.0, patience=0.0, jitter=0.02, failure_pause=0.2, settle_time=0.2, least_left=1
)


class Alarm:
    """Implements `timers.Timer`."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        self.call = None


class VirtualTime:
    """Implements `timers.Timers`: time passes when `advance` says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self._alarms: list[tuple[float, int, Alarm]] = []
        self._serial = itertools.count()

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Alarm:
        return self.call_at(self.now, callback, *args)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Alarm:
        alarm = Alarm(lambda: callback(*args))
        heapq.heappush(self._alarms, (when, next(self._serial), alarm))
        return alarm

    def advance(self, seconds: float = 0.0) -> None:
        until = self.now + seconds
        while self._alarms and self._alarms[0][0] <= until:
            when, _, alarm = heapq.heappop(self._alarms)
            self.now = max(self.now, when)
            if alarm.call is not None:
                alarm.call()
        self.now = until


class SimulatedWorker:
    """A `FakeEngine` behind two queues of frames."""

    def __init__(self, name: str, blocks: int, fabric: Fabric, source: random.Random) -> None:
        self.name = name
        self.role = NAMES[name[0]]
        self.connected = self.hangs = False
        self.outgoing: deque[Any] = deque()
        self.blocks = blocks
        self.others = self.other_blocks = 0  # sequences that other gateways have there, as it tells, and theirs
        self._fabric = fabric
        self._random = source
        self._incoming: deque[Any] = deque()
        self.engine = self._fresh()

    def _fresh(self, draining: bool = False) -> FakeEngine:
        engine = FakeEngine(self.name, f"{self._random.getrandbits(64):x}", self._fabric)
        engine.draining, self._events = draining, 0
        return engine

    def renew(self) -> None:
        """Starts another process: nothing of the old one is left."""
        self.engine.stop()
        self.engine = self._fresh(self.engine.draining)

    def disconnect(self) -> None:
        """The connection is gone, and with it all that was on its way; what ran for it stops."""
        self.connected = self.hangs = False
        self.outgoing.clear()
        self._incoming.clear()
        self.engine.jobs.clear()

    def take(self, frame: Any) -> bool:
        if self.connected:
            self._incoming.append(frame)
        return self.connected

    def hello(self) -> Hello:
        fixed = (16, self.blocks, 1 << 20, self.name.encode(), "memory")
        return Hello(self.name, self.engine.epoch, self.role, "r", "w", "l", *fixed, model="fake", params=LATER_PARAMS)

    def load(self) -> Load:
        jobs = self.engine.jobs.values()
        used = sum(len(job.sequence.token_ids) // 64 + len(job.made) for job in jobs)
        used = min(self.blocks, used + self.other_blocks)
        queued = sum(job.sequence.prompt_len for job in jobs if job.stage in ("queued", "prefilling"))
        return Load(
            *(queued, 0, len(jobs) + self.others, self.blocks - used, 0, used, 0),
            draining=self.engine.draining,
            credits=max(0, 6 - len(jobs)),
            context_tokens=sum(len(job.sequence.token_ids) // 4 for job in jobs),
            decode_cost=COST,
        )

    def run(self) -> list[kv_events.Stored]:
        """Reads all frames and makes one step. Its frames are in `outgoing`."""
        while self._incoming:
            if (answer := self._read(self._incoming.popleft())) is not None:
                self.outgoing.append(answer)
        reports = [report for _, report in self.engine.step()]
        items = tuple(report for report in reports if isinstance(report, TokenItem))
        self.outgoing += [report for report in reports if not isinstance(report, TokenItem)]
        if items:
            self.outgoing.append(Tokens(items))
        events = [self.stored(prompt) for prompt in self.engine.prompts]
        self.engine.prompts.clear()
        return events

    def _read(self, frame: Any) -> Any:
        engine = self.engine
        match frame:
            case Cancel():
                return engine.cancel(GATEWAY, frame)
            case Split():
                return engine.split(GATEWAY, frame)
            case Pause():
                return engine.pause(GATEWAY, frame.id, frame.on)
            case Handoff():
                return engine.move(GATEWAY, frame)
        return engine.accept(GATEWAY, frame)

    def stored(self, tokens: bytes, adapter: str = "") -> kv_events.Stored:
        """The event that it caches these tokens, computed with the adapter of this digest."""
        self._events += 1
        hashes = block_hash.chain(tokens, 16, block_hash.root("r", adapter))
        return kv_events.Stored(self.engine.epoch, self._events, block_hash.join(hashes))

    def snapshot(self) -> kv_events.Snapshot:
        return kv_events.Snapshot(self.engine.epoch, self._events, 0, True, b"")


class Simulation:
    """One gateway, some workers, some clients, and everything that may befall them."""

    def __init__(
        self,
        seed: int,
        vocabulary: Any,
        request: Callable[..., Any],
        roles: tuple[str, ...] | None = None,
        blocks: int | None = None,
        slow_client: Literal["Pause", "Disconnect"] | None = None,
        quotas: Mapping[str, Quota] | None = None,
        when_busy: Literal["Local", "Wait"] | None = None,
        rebalancing: RebalancingPolicy | None = BRISK,
        **retry: Any,
    ) -> None:
        """Draws the arguments that are not given."""
        self.random = random.Random(seed)
        self.time = VirtualTime()
        self._make_request = request
        fabric = Fabric()
        roles = roles or self.random.choice(ROLES)
        names = [f"{role}{i}" for i, role in enumerate(roles)]
        blocks = blocks or self.random.choice((16, 40, 1000))
        self.workers = {name: SimulatedWorker(name, blocks, fabric, self.random) for name in names}
        self.fleet, self.index = Fleet(self.time.time, "fake"), KVIndex()
        goal = Objectives(0.1, 0.1) if (when_busy or self.random.choice(("Local", "Wait"))) == "Local" else None
        limits = AdmissionLimits(max_queued=8, backfill_seconds=0.5, objectives=goal, quotas=quotas or {})
        self.admission = Admission(limits)
        policy = Policy(self.random.choice((0, 64)), self.random.choice(("Local", "Wait")), objectives=goal)
        transfer, deaths = self.random.choice(("Retry", "Recompute")), self.random.choice((2, 1000))
        slow = self.random.choice(("Pause", "Pause", "Disconnect"))
        patience = RetryPolicy(**{"on_transfer_failure": transfer, "poison_deaths": deaths} | retry)
        self.history = History()
        context = RelayContext(self.fleet, self.index, self.admission, self.history, METRICS, self.time)
        dispatcher = SubRequestDispatcher(context, policy, self.send, self.random)
        relaying = RelayPolicy(slow_client or slow, 8, patience, rebalancing, random.Random(seed).random)
        self.relay = RequestRelay(context, dispatcher, vocabulary, self, relaying)
        self.generations: list[RunningGeneration] = []
        self.texts: dict[tuple[RunningGeneration, int], str] = {}
        self.left: set[RunningGeneration] = set()
        self.chaos = self.random.choice((0.0, 0.02, 0.1))
        for name, worker in self.workers.items():
            self.fleet.add(name, name)
            self._connect(worker)

    def send(self, worker: str, frame: Any) -> bool:
        return self.workers[worker].take(frame)

    def request_snapshot(self, worker: str) -> None:
        """As `Links` does: the answer is the next event."""
        self.relay.workers.kv_event(worker, self.workers[worker].snapshot())

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────

    def happen(self) -> None:
        kinds = (self.submit, self.work, self.pass_time, self.connect, self.disturb, self.read, self.leave)
        self.random.choices(kinds, (2, 10, 3, 3, 2.5, 4, 0.3))[0]()
        self.check()

    def check(self) -> None:
        self.relay.check_integrity()
        self.fleet.check_integrity()

    def submit(self) -> None:
        chance = self.random
        request = self._make_request(
            seed=chance.randrange(1000),
            prompt=tuple(range(chance.choice((5, 40, 100)))),
            max_tokens=chance.choice((1, 5, 20, 40)),
            choices=chance.choice((1, 1, 2, 3)),
            deadline=chance.choice((1.0, 20.0, 60.0)),
            tenant=chance.choice("ab"),
            priority=chance.choice((0, 0, 1)),
            stop=chance.choice(((), (), (), ("ab", "kc"))),
            prompt_logprobs=chance.choice((None, None, 2)),
        )
        self.generations.append(self.relay.submit(request))

    def work(self) -> None:
        """Workers make steps, and some of what they tell arrives."""
        for worker in self.workers.values():
            if self.random.random() < 0.7:
                self._work(worker)
            if self.random.random() < 0.3:
                worker.outgoing.append(worker.load())
            for _ in range(self.random.choice((0, 1, 2, 5))):
                self._deliver(worker)
                self.relay.check_integrity()

    def _work(self, worker: SimulatedWorker) -> None:
        if worker.hangs:
            return
        for event in worker.run():
            if worker.connected and self.relay.workers.kv_event(worker.name, event):
                self.request_snapshot(worker.name)

    def _deliver(self, worker: SimulatedWorker) -> None:
        out = worker.outgoing
        if not worker.connected:
            out.clear()  # before it greets, nothing is sent to this gateway
        elif worker.hangs or not out:
            return
        else:
            if len(out) > 1 and self.random.random() < self.chaos:
                out.rotate(1)
            frame = out.popleft()
            if self.random.random() < self.chaos:
                out.append(frame)  # it comes again, later
            if self.random.random() >= self.chaos:
                self.relay.workers.received(worker.name, frame)

    def pass_time(self) -> None:
        self.time.advance(self.random.choice((0.0, 0.01, 0.01, 0.1, 0.5)))

    def connect(self) -> None:
        for worker in self.workers.values():
            self._connect(worker)

    def _connect(self, worker: SimulatedWorker) -> None:
        if not worker.connected:
            worker.connected = True
            worker.outgoing.append(worker.load())
            self.relay.workers.greeted(worker.name, worker.hello())

    def disturb(self) -> None:
        worker = self.random.choice(list(self.workers.values()))
        kinds = (self.kill, self.cut, self.lose_core, self.replace, self.hang, self.pause, self.wake, self.stay)
        self.random.choice((*kinds, *(self.drain,) * 4, *(self.refuse,) * 2, *(self.crowd,) * 4))(worker)

    def kill(self, worker: SimulatedWorker) -> None:
        """Dies as under SIGKILL; `connect` makes a new process of it."""
        worker.renew()
        self.cut(worker)

    def cut(self, worker: SimulatedWorker) -> None:
        """Its connection breaks; the process lives on."""
        worker.disconnect()
        self.relay.workers.disconnected(worker.name, "scripted")

    def lose_core(self, worker: SimulatedWorker, silent: bool = False) -> None:
        if worker.connected:
            epoch = worker.engine.epoch
            worker.renew()
            self.relay.workers.received(worker.name, Lost(epoch, "scripted", silent))
            self.check()
            self.relay.workers.greeted(worker.name, worker.hello())

    def replace(self, worker: SimulatedWorker) -> None:
        """A new epoch over the same connection, and no word that the old one is gone."""
        if worker.connected:
            worker.renew()
            self.relay.workers.greeted(worker.name, worker.hello())

    def hang(self, worker: SimulatedWorker) -> None:
        if worker.connected and not worker.hangs:
            self.pause(worker)
            self.relay.workers.hung(worker.name)

    def pause(self, worker: SimulatedWorker) -> None:
        """It is silent, but not for long enough to be left."""
        if worker.connected and not worker.hangs:
            worker.hangs = True
            self.relay.workers.silent(worker.name)

    def wake(self, worker: SimulatedWorker) -> None:
        if worker.hangs:
            worker.hangs = False
            self.relay.workers.spoke(worker.name)

    def drain(self, worker: SimulatedWorker) -> None:
        worker.engine.draining = True

    def stay(self, worker: SimulatedWorker) -> None:
        worker.engine.draining = False

    def crowd(self, worker: SimulatedWorker) -> None:
        """Sequences of other gateways come or go."""
        worker.others, worker.other_blocks = self.random.choice(((0, 0), (4, 0), (1, worker.blocks - 2)))

    def refuse(self, worker: SimulatedWorker) -> None:
        code = self.random.choice(("internal", "overloaded", "transfer", "peer_lost", "stale", "faulted"))
        worker.engine.refusals.append(ScriptedRefusal(code, retry=True))

    def read(self) -> None:
        if self.generations:
            self._read(self.random.choice(self.generations))

    def _read(self, generation: RunningGeneration) -> None:
        for delta in generation.ready():
            key = (generation, delta.choice)
            if key not in self.texts and generation.request.params.prompt_logprobs is not None:
                assert delta.scores is not None, "the first thing said has them"
            if delta.scores is not None:
                logprobs = [token.logprob for token in delta.scores]
                assert logprobs == [-float(token) for token in generation.request.prompt[1:]]
            self.texts[key] = self.texts.get(key, "") + delta.text

    def leave(self) -> None:
        if self.generations:
            generation = self.random.choice(self.generations)
            self.left.add(generation)
            self.relay.leave(generation)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> set[RunningGeneration]:
        """No more disturbances: everything ends by its deadline at the latest, and nothing is left anywhere.

        Returns requests that must end long before: no frame was lost, so nobody may wait for what never comes.
        """
        lossless, self.chaos = not self.chaos, 0.0
        patient = {g for g in self.generations if not g.ended and g.expires > self.time.now + 15}
        for worker in self.workers.values():
            self.wake(worker)
            worker.engine.draining, worker.others, worker.other_blocks = False, 0, 0
            self._connect(worker)
        for _ in range(4000):
            if not self.relay.active and not any(worker.engine.jobs for worker in self.workers.values()):
                break
            self.run(seconds=0.02 if lossless else 0.25)
        self.run()
        return patient if lossless else set()

    def run(self, steps: int = 1, seconds: float = 0.01) -> None:
        """All workers make a step, all their frames arrive, and all clients read."""
        for _ in range(steps):
            for worker in self.workers.values():
                self._work(worker)
                worker.outgoing.append(worker.load())
                while worker.outgoing and worker.connected and not worker.hangs:
                    self._deliver(worker)
            for generation in self.generations:
                self._read(generation)
            self.time.advance(seconds)
            self.check()

    def reports(self) -> list[HandoffReport]:
        return [report for worker in self.workers.values() for report in worker.engine.received]
