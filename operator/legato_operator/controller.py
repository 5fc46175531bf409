"""Wakes one reconcile loop per service: when told to, and at the time that the last pass named."""

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
GATHER_GROWTH = 1.5  # from wake to wake: twenty workers that become ready one by one are not twenty passes
MOST_PASSES = 16  # at once: with more, each takes longer, and all services are Ready together, late
log = logging.getLogger(__name__)


class Reconciles(Protocol):
    async def reconcile(self, ref: Ref) -> float | None:
        """One pass. Seconds until the next one is due at the latest, or None when the service is gone."""
        ...

    async def record_failure(self, ref: Ref, error: Exception) -> None:
        """Write into the service's status why a pass failed, if that can be done."""
        ...


class Journal(Protocol):
    """Who counts passes."""

    def passed(self, seconds: float) -> None: ...

    def failed(self, seconds: float, error: Exception) -> None: ...


class NullJournal:
    """Counts nothing."""

    def passed(self, seconds: float) -> None:
        return

    def failed(self, seconds: float, error: Exception) -> None:
        return


@dataclass(frozen=True)
class Retries:
    """Seconds until a service is looked at again after its pass failed: doubled each time, then kept."""

    first: float = 0.5
    longest: float = 30.0

    def after(self, failures: int) -> float:
        """With jitter, so that what failed together is not tried again together."""
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 30)) * random.uniform(0.5, 1.0)


@dataclass
class _ServiceLoop:
    """Of one service."""

    wake: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # it was edited, or is to be deleted
    generation: int = 0
    begun: bool = False  # it has had a pass


class Controller:
    """Runs until it is cancelled. With `retries`, a pass that fails is tried again and stops no other service's.

    Without, a fault ends the run: where one service is all there is, a loop that does nothing must not look alive.
    """

    def __init__(
        self,
        reconciler: Reconciles,
        retries: Retries | None = None,
        journal: Journal | None = None,
        gather: float = 0.0,
        time: Callable[[], float] = time.monotonic,
        most_passes: int = MOST_PASSES,
    ) -> None:
        """For `gather` seconds after a wake, more of them mean the same pass: writes are told of one by one.

        For as long as the last pass took, if that is longer, and for longer as wakes go on, up to `LONGEST_GATHER`: a
        service that moves is not busy all of the time. An edit is not waited with.

        Of more than `most_passes` that are due, services that have begun go first: they are the nearest to Ready.
        """
        self._gather = gather
        self._time = time
        self._slots = PassSlots(most_passes)
        self._reconciler = reconciler
        self._retries = retries
        self._journal = journal or NullJournal()
        self._tasks: asyncio.TaskGroup | None = None
        self._loops: dict[Ref, _ServiceLoop] = {}
        self._passes: dict[Ref, float] = {}  # when those under way began

    def wake(self, ref: Ref, generation: int = 0) -> None:
        """Look at a service soon: after a failure only when its time has come, or at a new generation of its own.

        Nothing while it does not run: whoever starts it wakes what there is.
        """
        if self._tasks is None:
            return
        loop = self._loops.get(ref)
        if loop is None:
            loop = self._loops[ref] = _ServiceLoop()
            self._tasks.create_task(self._serve(ref, loop))
        loop.wake.set()
        if generation > loop.generation:
            loop.generation = generation
            loop.changed.set()

    async def run(self) -> None:
        """Reconcile what is woken."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    await asyncio.get_running_loop().create_future()  # until cancelled, or a task's fault cancels it
                finally:
                    self._tasks = None
        finally:
            self._loops.clear()
            self._passes.clear()

    def longest_pass(self) -> float:
        """Seconds that the oldest pass under way has taken so far."""
        return max((self._time() - began for began in self._passes.values()), default=0.0)

    async def _serve(self, ref: Ref, loop: _ServiceLoop) -> None:
        failures, gather = 0, self._gather
        while True:
            try:
                due, took = await self._in_turn(ref, loop)
            except NotLeading:
                raise
            except Exception as error:  # whatever one object does to its pass, the others' go on
                if self._retries is None:
                    raise
                failures += 1
                await self._note(ref, error, failures)
                await _wait(loop.changed, self._retries.after(failures))
                continue
            failures = 0
            if due is None:
                if loop.wake.is_set():
                    continue  # there may be one of that name again
                del self._loops[ref]
                return
            if not await _wait(loop.wake, due):
                gather = self._gather
            elif gather:
                await _wait(loop.changed, max(gather, min(took, LONGEST_GATHER)))
                gather = max(self._gather, min(gather * GATHER_GROWTH, LONGEST_GATHER))

    async def _in_turn(self, ref: Ref, loop: _ServiceLoop) -> tuple[float | None, float]:
        """When to look again, and how long the pass took. What wakes the service while it waits is part of the pass."""
        async with self._slots.acquire(urgent=loop.begun):
            loop.wake.clear()
            loop.changed.clear()
            loop.begun = True
            began = self._time()
            return await self._timed(ref), self._time() - began

    async def _timed(self, ref: Ref) -> float | None:
        began = self._passes[ref] = self._time()
        try:
            due = await self._reconciler.reconcile(ref)
        except Exception as error:
            self._journal.failed(self._time() - began, error)
            raise
        finally:
            del self._passes[ref]
        self._journal.passed(self._time() - began)
        return due

    async def _note(self, ref: Ref, error: Exception, failures: int) -> None:
        """A cluster that cannot be asked cannot be told either. What it refuses, its own words explain."""
        if isinstance(error, Unavailable):
            log.warning("%s/%s: %s", ref.namespace, ref.name, error)
            return
        fault = None if isinstance(error, ClusterError) else error
        told = "%s/%s: pass failed, %d in a row: %s"
        log.error(told, ref.namespace, ref.name, failures, error, exc_info=fault)
        try:
            await self._reconciler.record_failure(ref, error)
        except Exception:  # what is wrong with the object may be wrong with its status too
            log.exception("%s/%s: its status cannot be told either", ref.namespace, ref.name)


async def _wait(event: asyncio.Event, seconds: float) -> bool:
    """Whether it happened within that time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # `wait_for` of Python 3.11 forgets a cancel that comes with the event
            await event.wait()
    return event.is_set()


def service_of(item: Object) -> Ref | None:
    """The service that an object is, or belongs to."""
    ref = ref_of(item)
    if ref.kind == names.INFERENCE_SERVICE:
        return ref
    service = labels_of(item).get(names.LABEL_SERVICE)
    return Ref(names.INFERENCE_SERVICE, ref.namespace, service) if service else None
