"""Wakes a controller at events of the local cluster."""

import asyncio

from legato_operator.controller import Controller, service_of
from legato_operator.local.store import Store
from legato_operator.waking import DemandWaker
from legato_protocol import names

WATCHED = (names.INFERENCE_SERVICE, names.WORKER_POOL, "Pod")


async def run(store: Store, controller: Controller, waker: DemandWaker | None = None) -> None:
    """Runs the controller with its watches until cancelled. An error in any of them ends all."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(controller.run())
        if waker is not None:
            tasks.create_task(waker.run(controller.poll))
        for kind in WATCHED:
            tasks.create_task(_follow(store, kind, controller))


async def _follow(store: Store, kind: str, controller: Controller) -> None:
    async for event in store.follow(kind):
        ref = service_of(event.object)
        if ref is not None:
            controller.wake(ref)
