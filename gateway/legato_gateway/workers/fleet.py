"""The known workers: last `Hello` and `Load` of each, its connection, and the work sent since."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.wire.canary import Canary
from legato_protocol.wire.kv_windows import sequence_blocks
from legato_protocol.wire.load import Load
from legato_protocol.wire.stream import Hello

Connection = Literal["connecting", "connected", "silent", "hung", "lost"]

BREAKER_FAILURES = 3  # requests that failed …
BREAKER_WINDOW = 10.0  # … within this number of seconds open the breaker: the worker is the last resort


@dataclass(slots=True)
class Pending:
    """Work sent to a worker that its `Load` cannot include yet."""

    tokens: int = 0
    blocks: int = 0
    sequences: int = 0

    def add(self, other: "Pending") -> None:
        self.tokens += other.tokens
        self.blocks += other.blocks
        self.sequences += other.sequences


@dataclass(slots=True)
class Worker:
    """One known worker.

    `silent`: it gets nothing new, and its sequences wait for it. `hung`: its sequences go elsewhere. `lost`: connected,
    but its core died and has not come back.
    """

    name: str
    address: str
    connection: Connection = "connecting"
    hello: Hello | None = None
    load: Load | None = None
    loaded_at: float = 0.0  # time of `load`, on the fleet's clock
    problem: str = ""
    lost_at: float | None = None  # when its connection last broke, on the fleet's clock
    listed: bool = True
    foreign: bool = False  # it serves another model than this gateway and gets no requests
    failures: dict[str, float] = field(default_factory=dict)  # time of the last failure by request, oldest first
    # Sent since the last Load, and between the last two. A Load may have been under way when a frame was sent, so only
    # the second Load after it surely includes it.
    pending: Pending = field(default_factory=Pending)
    pending_before: Pending = field(default_factory=Pending)

    @property
    def ready(self) -> bool:
        return self.connection == "connected" and not self.foreign

    @property
    def greeted(self) -> bool:
        """True if it said Hello on the open connection."""
        return self.connection in ("connected", "silent")

    @property
    def epoch(self) -> str:
        return self.hello.epoch if self.hello else ""

    @property
    def leaving(self) -> bool:
        """True if it reported that it drains: its sequences are to go elsewhere."""
        return self.load is not None and self.load.draining

    @property
    def draining(self) -> bool:
        """True if it gets nothing new: it drains, or discovery has dropped it."""
        return not self.listed or self.leaving


class Fleet:
    """All known workers. `model` is the digest of this gateway's model.

    `snapshot` is cached for policy, with a new view of each worker that changed.

    `openings` counts changes after which something may start that could not before: a worker got more room, credits or
    a shorter queue, or its usability changed. A loss counts, as breakers of the others are then forgiven.
    """

    def __init__(self, clock: Callable[[], float], model: str) -> None:
        self._clock = clock
        self._model = model
        self._workers: dict[str, Worker] = {}
        self._views: dict[str, WorkerView] = {}  # of workers of this model that ever said Hello
        self._snapshot: FleetSnapshot | None = FleetSnapshot()
        self._broken: dict[str, float] = {}  # end of the open breaker, on the clock
        self._openings = 0
        self.has_served = False  # some worker could generate for this gateway, now or earlier
        self._is_listed = False
        self.has_tried_all = False  # every listed worker was connected or tried: all that serve are known
        self._canary: Canary | None = None

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def worker(self, name: str) -> Worker | None:
        """Returns the worker of that name, in any state, or None."""
        return self._workers.get(name)

    @property
    def canary(self) -> Canary | None:
        """The canary in progress, or None."""
        return self._canary

    def set_canary(self, canary: Canary | None) -> None:
        """Distinguishes new workers from old ones from now on, or no longer."""
        self._canary = canary
        for name in self._workers:
            self._changed(name)

    def add(self, name: str, address: str) -> Worker:
        """Adds a discovered worker."""
        worker = self._workers[name] = Worker(name, address)
        self._changed(name)
        return worker

    def listed(self) -> None:
        """Discovery has listed all workers."""
        self._is_listed = True
        self._try_all()

    def list(self, name: str, listed: bool) -> None:
        """Discovery lists the worker, or has dropped it."""
        self._workers[name].listed = listed
        self._changed(name)

    def remove(self, name: str) -> None:
        """Removes a worker that this gateway no longer connects to."""
        self._workers.pop(name, None)
        self._try_all()
        self._changed(name)

    def greeted(self, name: str, hello: Hello) -> None:
        """The worker connected, or its core came back."""
        worker = self._workers[name]
        if worker.epoch != hello.epoch:
            worker.pending, worker.pending_before = Pending(), Pending()
            worker.failures.clear()
            self._broken.pop(name, None)
        if not (worker.greeted and worker.epoch == hello.epoch):  # else it only has other adapters
            worker.load = None
        worker.hello = hello
        worker.foreign = hello.model != self._model
        problem = f"it serves another model ({hello.model or 'unknown'}) than this gateway ({self._model})"
        worker.connection, worker.problem = "connected", problem if worker.foreign else ""
        self.has_served |= not worker.foreign and hello.role != "prefill"
        self._try_all()
        self._changed(name)

    def loaded(self, name: str, load: Load) -> None:
        """The worker reported its load."""
        worker = self._workers[name]
        worker.load, worker.loaded_at = load, self._clock()
        worker.pending_before, worker.pending = worker.pending, Pending()
        self._changed(name)

    def disconnected(self, name: str, connection: Connection, problem: str) -> None:
        """The worker cannot be used, because of `problem`."""
        worker = self._workers[name]
        if worker.greeted:
            worker.lost_at = self._clock()
        worker.connection, worker.problem = connection, problem
        self._try_all()
        self._changed(name)

    def spoke(self, name: str) -> None:
        """The worker is no longer silent."""
        worker = self._workers[name]
        if worker.connection in ("silent", "hung"):
            worker.connection, worker.problem = "connected", ""
            self._changed(name)

    def sent(self, name: str, *, queued: int, held: int) -> None:
        """A sequence was sent: `queued` tokens will be computed there, `held` tokens will take blocks."""
        worker = self._workers.get(name)
        if worker is not None and worker.hello is not None:
            blocks = sequence_blocks(held, worker.hello.block_size, worker.hello.windows)
            worker.pending.add(Pending(queued, blocks, 1))
            self._changed(name)

    def failed(self, name: str, request: str) -> None:
        """Records a failure that was worth a retry elsewhere. Each request counts once."""
        worker = self._workers.get(name)
        if worker is not None:
            worker.failures.pop(request, None)
            worker.failures[request] = self._clock()
            if len(worker.failures) > BREAKER_FAILURES:
                del worker.failures[next(iter(worker.failures))]
            if len(worker.failures) == BREAKER_FAILURES:
                self._broken[name] = min(worker.failures.values()) + BREAKER_WINDOW
                self._changed(name)

    def lives(self, name: str, epoch: str) -> bool:
        """True if the worker's process of this epoch is connected, so that it cannot have died."""
        worker = self._workers.get(name)
        return worker is not None and worker.connection in ("connected", "silent", "hung") and worker.epoch == epoch

    @property
    def openings(self) -> int:
        """Number of changes so far after which more may start."""
        self._close_breakers()
        return self._openings

    def snapshot(self) -> FleetSnapshot:
        """Returns every worker of this model that ever said Hello, as it is now."""
        self._close_breakers()
        if self._snapshot is None:
            self._snapshot = FleetSnapshot(tuple(self._views.values()))
        return self._snapshot

    def check_integrity(self) -> None:
        """Raises AssertionError unless the views match the workers."""
        self.snapshot()
        views = {w.name: self._view(w, w.hello) for w in self._workers.values() if w.hello and not w.foreign}
        assert self._views == views, "a view is not what its worker is"

    def _try_all(self) -> None:
        if self._is_listed and all(worker.hello or worker.problem for worker in self._workers.values()):
            self.has_tried_all = True

    def _close_breakers(self) -> None:
        if not self._broken:
            return
        now = self._clock()
        for name in [name for name, until in self._broken.items() if until <= now]:
            del self._broken[name]
            self._changed(name)

    def _changed(self, name: str) -> None:
        worker, before = self._workers.get(name), self._views.get(name)
        if worker is not None and worker.hello is not None and not worker.foreign:
            after = self._views[name] = self._view(worker, worker.hello)
            self._openings += before is None or _opens(before, after)
        elif before is not None:
            del self._views[name]
            self._openings += 1
        self._snapshot = None

    def _view(self, worker: Worker, hello: Hello) -> WorkerView:
        load, now, before = worker.load, worker.pending, worker.pending_before
        return WorkerView(
            name=worker.name,
            role=hello.role,
            epoch=hello.epoch,
            kv_revision=hello.kv_revision,
            block_size=hello.block_size,
            num_blocks=hello.num_blocks,
            windows=hello.windows,
            max_length=hello.max_length,
            address=hello.address,
            transport=hello.transport,
            grammars=hello.grammars,
            params=hello.params,
            adapters=hello.adapters,
            former_adapters=hello.former_adapters,
            loaded_adapters=load.adapters if load else (),
            tiers=hello.tiers,
            restore_seconds=load.restore_seconds if load else (),
            ready=worker.ready,
            draining=worker.draining,
            new_revision=self._canary.is_new(hello.role, hello.pod_revision) if self._canary is not None else None,
            broken=worker.name in self._broken,
            queue_tokens=load.queue_tokens if load else 0,
            waiting=load.waiting if load else 0,
            running=load.running if load else 0,
            free_blocks=load.free_blocks if load else hello.num_blocks,
            cached_blocks=load.cached_blocks if load else 0,
            asked_blocks=load.pending_blocks if load else 0,
            growth_blocks=load.growth_blocks if load else 0,
            next_growth_blocks=load.next_growth_blocks if load else 0,
            paused_blocks=load.paused_blocks if load else 0,
            paused=load.paused if load else 0,
            granted=load.granted if load else 0,
            prefill_rate=load.prefill_rate if load else 0.0,
            prefill_cost=load.prefill_cost if load else None,
            step_time=load.step_time if load else 0.0,
            decode_cost=load.decode_cost if load else None,
            put_rate=load.put_rate if load else 0.0,
            shares_cores=load is not None and load.shares_cores,
            context_tokens=load.context_tokens if load else 0,
            slots=load.slots if load else 0,
            credits=load.credits if load else None,
            pending_tokens=now.tokens + before.tokens,
            pending_blocks=now.blocks + before.blocks,
            pending_sequences=now.sequences + before.sequences,
        )


def _opens(before: WorkerView, after: WorkerView) -> bool:
    """True if something may start after this change that could not before."""
    if before.epoch != after.epoch or before.usable != after.usable or before.adapters != after.adapters:
        return True
    return (
        after.room > before.room
        or (before.crowded and not after.crowded)
        or after.backlog < before.backlog
        or after.prefill_rate > before.prefill_rate
        or (after.credits_left or 0) > (before.credits_left or 0)
        or (after.credits_left is None) != (before.credits_left is None)
    )
