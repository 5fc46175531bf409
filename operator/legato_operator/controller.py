"""Wakes one reconcile loop per service: at events of its objects, and at the time that the last pass named."""

import asyncio
import contextlib

from legato_operator.cluster import Cluster, Object, Ref, labels_of, ref_of
from legato_operator.errors import Gone
from legato_operator.reconcile import Reconciler
from legato_protocol import names

WATCHED = (names.INFERENCE_SERVICE, names.WORKER_POOL, "Pod")


class Controller:
    """Runs until it is cancelled. A fault in a pass ends it: a loop that no longer reconciles must not look alive."""

    def __init__(self, cluster: Cluster, reconciler: Reconciler) -> None:
        self._cluster = cluster
        self._reconciler = reconciler
        self._wakes: dict[Ref, asyncio.Event] = {}

    async def run(self) -> None:
        """Watch and reconcile."""
        async with asyncio.TaskGroup() as tasks:
            for kind in WATCHED:
                tasks.create_task(self._watch(kind, tasks))

    async def _watch(self, kind: str, tasks: asyncio.TaskGroup) -> None:
        while True:
            listing = await self._cluster.list(kind)
            for item in listing.items:
                self._wake(item, tasks)
            with contextlib.suppress(Gone):  # then list again
                async for event in self._cluster.watch(kind, listing.version):
                    self._wake(event.object, tasks)

    def _wake(self, item: Object, tasks: asyncio.TaskGroup) -> None:
        ref = _service_of(item)
        if ref is None:
            return
        if ref not in self._wakes:
            self._wakes[ref] = asyncio.Event()
            tasks.create_task(self._serve(ref))
        self._wakes[ref].set()

    async def _serve(self, ref: Ref) -> None:
        wake = self._wakes[ref]
        while True:
            wake.clear()
            due = await self._reconciler.reconcile(ref)
            if due is None:
                del self._wakes[ref]
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), due)


def _service_of(item: Object) -> Ref | None:
    """The service that an object is, or belongs to."""
    ref = ref_of(item)
    if ref.kind == names.INFERENCE_SERVICE:
        return ref
    service = labels_of(item).get(names.LABEL_SERVICE)
    return Ref(names.INFERENCE_SERVICE, ref.namespace, service) if service else None
