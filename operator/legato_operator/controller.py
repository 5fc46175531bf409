"""Runs one reconcile loop per service, when it is woken and when its next pass is due."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from legato_operator.cluster import Object, Ref, labels_of, ref_of
from legato_operator.errors import ClusterError, NotLeading, Unavailable
from legato_operator.pass_slots import PassSlots
from legato_protocol import names

LONGEST_GATHER = 1.0  # seconds
GATHER_GROWTH = 1.5  # from wake to wake, so that twenty workers becoming ready one by one need fewer passes
MOST_PASSES = 16  # concurrent passes: more would slow down each, and delay all services' readiness
log = logging.getLogger(__name__)


class Reconciles(Protocol):
    async def reconcile(self, ref: Ref, woken: bool = True) -> float | None:
        """Runs one pass. Returns the seconds until the next one is due at the latest, or None if the service is gone.

        `woken` is False if nothing happened and the pass is only due.
        """
        ...

    async def record_failure(self, ref: Ref, error: Exception) -> None:
        """Writes the error of a failed pass into the service's status, if possible."""
        ...


class Journal(Protocol):
    """Counts passes."""

    def passed(self, seconds: float) -> None: ...

    def failed(self, seconds: float, error: Exception) -> None: ...


@dataclass(frozen=True)
class Retries:
    """Seconds until a service's failed pass is retried: doubled with each failure, up to `longest`."""

    first: float = 0.5
    longest: float = 30.0

    def after(self, failures: int) -> float:
        """Returns the delay with jitter, so that services that failed together are not retried together."""
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 30)) * random.uniform(0.5, 1.0)


@dataclass
class _ServiceLoop:
    """State of one service's loop."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # it was edited, or is to be deleted
    due: asyncio.Event = field(default_factory=asyncio.Event)  # it was woken or polled
    generation: int = 0
    started: bool = False  # it has had a pass


class Controller:
    """Runs until it is cancelled. With `retries`, a failed pass is retried and does not affect other services.

    Without, an error ends the run: with only one service, a loop that does nothing must not look alive.
    """

    def __init__(
        self,
        reconciler: Reconciles,
        journal: Journal,
        retries: Retries | None = None,
        gather: float = 0.0,
        time: Callable[[], float] = time.monotonic,
        most_passes: int = MOST_PASSES,
    ) -> None:
        """Wakes within `gather` seconds share a pass, because writes are reported one by one.

        The time grows to the duration of the last pass, and while wakes continue, up to `LONGEST_GATHER`, so that a
        changing service does not run passes all the time. An edit starts a pass immediately.

        At most `most_passes` run concurrently. Services that had a pass go first, because they are closer to Ready.
        """
        self._gather = gather
        self._time = time
        self._slots = PassSlots(most_passes)
        self._reconciler = reconciler
        self._retries = retries
        self._journal = journal
        self._tasks: asyncio.TaskGroup | None = None
        self._loops: dict[Ref, _ServiceLoop] = {}
        self._passes: dict[Ref, float] = {}  # start times of running passes

    def wake(self, ref: Ref, generation: int = 0) -> None:
        """Schedules a pass soon; after a failure only when the retry is due, or at a new generation of the service.

        Does nothing while the controller does not run: its starter wakes all services.
        """
        if self._tasks is None:
            return
        loop = self._loops.get(ref)
        if loop is None:
            loop = self._loops[ref] = _ServiceLoop()
            self._tasks.create_task(self._serve(ref, loop))
        loop.wake.set()
        loop.due.set()
        if generation > loop.generation:
            loop.generation = generation
            loop.changed.set()

    def poll(self, ref: Ref) -> None:
        """Lets a service's pass be due now, although nothing happened to its objects."""
        if ref in self._loops:
            self._loops[ref].due.set()

    async def run(self) -> None:
        """Reconciles woken services until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    await asyncio.get_running_loop().create_future()  # until cancelled, also by a task's error
                finally:
                    self._tasks = None
        finally:
            self._loops.clear()
            self._passes.clear()

    def longest_pass(self) -> float:
        """Returns the seconds that the oldest running pass has taken so far."""
        return max((self._time() - began for began in self._passes.values()), default=0.0)

    async def _serve(self, ref: Ref, loop: _ServiceLoop) -> None:
        failures, gather, woken = 0, self._gather, True
        while True:
            try:
                due, took = await self._run_in_slot(ref, loop, woken)
            except NotLeading:
                raise
            except Exception as error:  # one object's failure must not stop the others
                if self._retries is None:
                    raise
                failures, woken = failures + 1, True
                await self._note(ref, error, failures)
                await _wait(loop.changed, self._retries.after(failures))
                continue
            failures = 0
            if due is None:
                if loop.wake.is_set():
                    woken = True
                    continue  # a new service may have the same name
                del self._loops[ref]
                return
            await _wait(loop.due, due)
            woken = loop.wake.is_set()
            if not woken:
                gather = self._gather
            elif gather:
                await _wait(loop.changed, max(gather, min(took, LONGEST_GATHER)))
                gather = max(self._gather, min(gather * GATHER_GROWTH, LONGEST_GATHER))

    async def _run_in_slot(self, ref: Ref, loop: _ServiceLoop, woken: bool) -> tuple[float | None, float]:
        """Runs a pass in a slot. Returns the seconds until the next pass, and the duration of this one."""
        async with self._slots.acquire(urgent=loop.started):
            woken = woken or loop.wake.is_set()
            loop.wake.clear()
            loop.due.clear()
            loop.changed.clear()
            loop.started = True
            began = self._time()
            return await self._timed(ref, woken), self._time() - began

    async def _timed(self, ref: Ref, woken: bool) -> float | None:
        began = self._passes[ref] = self._time()
        try:
            due = await self._reconciler.reconcile(ref, woken)
        except Exception as error:
            self._journal.failed(self._time() - began, error)
            raise
        finally:
            del self._passes[ref]
        self._journal.passed(self._time() - began)
        return due

    async def _note(self, ref: Ref, error: Exception, failures: int) -> None:
        """Logs a failed pass and records it in the status, unless the cluster is unavailable."""
        if isinstance(error, Unavailable):
            log.warning("%s/%s: %s", ref.namespace, ref.name, error)
            return
        fault = None if isinstance(error, ClusterError) else error
        text = "%s/%s: pass failed, %d in a row: %s"
        log.error(text, ref.namespace, ref.name, failures, error, exc_info=fault)
        try:
            await self._reconciler.record_failure(ref, error)
        except Exception:  # the object's fault may affect its status, too
            log.exception("%s/%s: its status cannot be written either", ref.namespace, ref.name)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Returns True if the event happened within the time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # `wait_for` of Python 3.11 forgets a cancel that comes with the event
            await event.wait()
    return event.is_set()


def service_of(item: Object) -> Ref | None:
    """Returns the service that an object is or belongs to, or None."""
    ref = ref_of(item)
    if ref.kind == names.INFERENCE_SERVICE:
        return ref
    service = labels_of(item).get(names.LABEL_SERVICE)
    return Ref(names.INFERENCE_SERVICE, ref.namespace, service) if service else None
