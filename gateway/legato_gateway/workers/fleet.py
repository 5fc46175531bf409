"""The workers this gateway knows: last `Hello` and `Load` of each, its connection, and what was sent to it since."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from legato_gateway.routing.fleet_snapshot import FleetSnapshot, WorkerView
from legato_protocol.load import Load
from legato_protocol.stream import Hello

Connection = Literal["connecting", "connected", "silent", "hung", "lost"]

BREAKER_FAILURES = 3  # so many requests failed …
BREAKER_WINDOW = 10.0  # … within so many seconds, and the worker is used only where no other is left


@dataclass(slots=True)
class Pending:
    """What was sent to a worker and cannot show in its `Load` yet."""

    tokens: int = 0
    blocks: int = 0
    sequences: int = 0

    def add(self, other: "Pending") -> None:
        self.tokens += other.tokens
        self.blocks += other.blocks
        self.sequences += other.sequences


@dataclass(slots=True)
class Worker:
    """One known worker. `silent` means: it is given nothing new, and what it has is waited for; `hung`: what it had
    goes elsewhere; `lost`: connected, but its core died and has not come back."""

    name: str
    address: str
    connection: Connection = "connecting"
    hello: Hello | None = None
    load: Load | None = None
    loaded_at: float = 0.0  # when it told that, on the fleet's clock
    problem: str = ""
    lost_at: float | None = None  # when a connection to it broke last, on the fleet's clock
    listed: bool = True
    foreign: bool = False  # it serves another model than this gateway: it is given nothing
    failures: dict[str, float] = field(default_factory=dict)  # the last time of each request's, oldest first
    # Sent since the last Load, and between the last two: a Load may have been on its way when a frame was sent, so
    # only the second Load after it surely counts it.
    pending: Pending = field(default_factory=Pending)
    pending_before: Pending = field(default_factory=Pending)

    @property
    def ready(self) -> bool:
        return self.connection == "connected" and not self.foreign

    @property
    def greeted(self) -> bool:
        """It said Hello on a connection that is open."""
        return self.connection in ("connected", "silent")

    @property
    def epoch(self) -> str:
        return self.hello.epoch if self.hello else ""

    @property
    def leaving(self) -> bool:
        """It said that it drains: what runs there is to go elsewhere."""
        return self.load is not None and self.load.draining

    @property
    def draining(self) -> bool:
        """It takes nothing new: it drains, or discovery lists it no more."""
        return not self.listed or self.leaving


class Fleet:
    """All known workers. `snapshot` is what policy decides over: kept, with the view of each worker made anew when that
    changes. `model` is the digest of what this gateway loaded.

    `openings` grows with every change after which something may start that could not before: a worker with more room,
    credits or a shorter queue; one that became usable; and one that did not, since then others are forgiven.
    """

    def __init__(self, clock: Callable[[], float], model: str) -> None:
        self._clock = clock
        self._model = model
        self._workers: dict[str, Worker] = {}
        self._views: dict[str, WorkerView] = {}  # of workers of this model that ever said Hello
        self._snapshot: FleetSnapshot | None = FleetSnapshot()
        self._broken: dict[str, float] = {}  # until when, on the clock
        self._openings = 0
        self.has_served = False  # some worker could generate for this gateway, now or before
        self._is_listed = False
        self.has_tried_all = False  # every listed worker was spoken to, or tried: whoever serves now is known

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def worker(self, name: str) -> Worker | None:
        """The worker of that name, in any state."""
        return self._workers.get(name)

    def add(self, name: str, address: str) -> Worker:
        """A worker was discovered."""
        worker = self._workers[name] = Worker(name, address)
        self._changed(name)
        return worker

    def listed(self) -> None:
        """Discovery has told of all workers there are."""
        self._is_listed = True
        self._try_all()

    def list(self, name: str, listed: bool) -> None:
        """Discovery names it, or does so no more."""
        self._workers[name].listed = listed
        self._changed(name)

    def remove(self, name: str) -> None:
        """Nothing connects this gateway to it any more."""
        self._workers.pop(name, None)
        self._try_all()
        self._changed(name)

    def greeted(self, name: str, hello: Hello) -> None:
        """It connected, or its core came back."""
        worker = self._workers[name]
        if worker.epoch != hello.epoch:
            worker.pending, worker.pending_before = Pending(), Pending()
            worker.failures.clear()
            self._broken.pop(name, None)
        if not (worker.greeted and worker.epoch == hello.epoch):  # else it only has other adapters
            worker.load = None
        worker.hello = hello
        worker.foreign = hello.model != self._model
        told = f"it serves another model ({hello.model or 'untold'}) than this gateway ({self._model})"
        worker.connection, worker.problem = "connected", told if worker.foreign else ""
        self.has_served |= not worker.foreign and hello.role != "prefill"
        self._try_all()
        self._changed(name)

    def loaded(self, name: str, load: Load) -> None:
        """It told how busy it is."""
        worker = self._workers[name]
        worker.load, worker.loaded_at = load, self._clock()
        worker.pending_before, worker.pending = worker.pending, Pending()
        self._changed(name)

    def disconnected(self, name: str, connection: Connection, problem: str) -> None:
        """It cannot be used, and why."""
        worker = self._workers[name]
        if worker.greeted:
            worker.lost_at = self._clock()
        worker.connection, worker.problem = connection, problem
        self._try_all()
        self._changed(name)

    def spoke(self, name: str) -> None:
        """It was silent and is not any more."""
        worker = self._workers[name]
        if worker.connection in ("silent", "hung"):
            worker.connection, worker.problem = "connected", ""
            self._changed(name)

    def sent(self, name: str, *, queued: int, held: int) -> None:
        """A sequence went there: `queued` tokens are to be computed there, `held` will take blocks there."""
        worker = self._workers.get(name)
        if worker is not None and worker.hello is not None:
            worker.pending.add(Pending(queued, -(-held // worker.hello.block_size), 1))
            self._changed(name)

    def failed(self, name: str, request: str) -> None:
        """A request failed there and was worth trying elsewhere. However often one does, it counts once."""
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
        """Whether that very process is connected (so that it cannot have died)."""
        worker = self._workers.get(name)
        return worker is not None and worker.connection in ("connected", "silent", "hung") and worker.epoch == epoch

    @property
    def openings(self) -> int:
        """How often something changed after which more may start."""
        self._close_breakers()
        return self._openings

    def snapshot(self) -> FleetSnapshot:
        """Every worker of this model that ever said Hello, as it is now."""
        self._close_breakers()
        if self._snapshot is None:
            self._snapshot = FleetSnapshot(tuple(self._views.values()))
        return self._snapshot

    def check_integrity(self) -> None:
        """Raises AssertionError unless the views are those of the workers as they are."""
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
            max_length=hello.max_length,
            address=hello.address,
            transport=hello.transport,
            grammars=hello.grammars,
            params=hello.params,
            adapters=hello.adapters,
            former_adapters=hello.former_adapters,
            loaded_adapters=load.adapters if load else (),
            ready=worker.ready,
            draining=worker.draining,
            broken=worker.name in self._broken,
            queue_tokens=load.queue_tokens if load else 0,
            waiting=load.waiting if load else 0,
            running=load.running if load else 0,
            free_blocks=load.free_blocks if load else hello.num_blocks,
            cached_blocks=load.cached_blocks if load else 0,
            asked_blocks=load.pending_blocks if load else 0,
            paused_blocks=load.paused_blocks if load else 0,
            prefill_rate=load.prefill_rate if load else 0.0,
            prefill_cost=load.prefill_cost if load else None,
            step_time=load.step_time if load else 0.0,
            decode_cost=load.decode_cost if load else None,
            context_tokens=load.context_tokens if load else 0,
            slots=load.slots if load else 0,
            credits=load.credits if load else None,
            pending_tokens=now.tokens + before.tokens,
            pending_blocks=now.blocks + before.blocks,
            pending_sequences=now.sequences + before.sequences,
        )


def _opens(before: WorkerView, after: WorkerView) -> bool:
    """Whether something may start after this change that could not before."""
    if before.epoch != after.epoch or before.usable != after.usable or before.adapters != after.adapters:
        return True
    return (
        after.room > before.room
        or after.backlog < before.backlog
        or after.prefill_rate > before.prefill_rate
        or (after.credits_left or 0) > (before.credits_left or 0)
        or (after.credits_left is None) != (before.credits_left is None)
    )
