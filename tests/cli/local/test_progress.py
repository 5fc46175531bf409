"""A start tells what is ready, and from then on each change is told once."""

import asyncio
import io
from collections.abc import Callable
from typing import Any

import virtual_loop

from legato_cli.local import progress
from legato_cli.local.progress import Progress
from legato_cli.local.terminal import Terminal
from legato_operator.cluster import Ref
from legato_operator.local.store import Store

SERVICE = Ref("InferenceService", "default", "demo")
LABELS = {"serving.legato.dev/service": "demo", "serving.legato.dev/role": "decode"}


class World:
    """A service with pods whose states a test sets."""

    def __init__(self) -> None:
        self.store = Store(lambda: "now")
        self.out = io.StringIO()
        self.progress = Progress(self.store, SERVICE, Terminal(self.out, self.out))

    async def make(self) -> None:
        spec = {"model": {"source": {"builtin": "smollm2-135m-instruct"}}}
        kind = {"apiVersion": "serving.legato.dev/v1alpha1", "kind": "InferenceService", "metadata": {"name": "demo"}}
        await self.store.apply({**kind, "spec": spec}, "user")

    async def pod(self, name: str, message: str, ready: bool = False) -> None:
        item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS}, "spec": {}}
        await self.store.apply(item, "operator", force=True)
        condition = {"type": "Ready", "status": str(ready), "message": message}
        await self.store.patch_status(Ref("Pod", "default", name), {"conditions": [condition]})

    async def condition(self, type: str, status: str, reason: str) -> None:
        condition = {"type": type, "status": status, "reason": reason, "message": ""}
        await self.store.patch_status(SERVICE, {"conditions": [condition]})

    async def told(self) -> list[str]:
        """What is new since it was asked last, after some looks at the cluster."""
        await asyncio.sleep(5 * progress.INTERVAL)
        text = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return text.splitlines()


def run(scenario: Callable[[World], Any]) -> None:
    """In virtual time."""

    async def check() -> None:
        world = World()
        await world.make()
        following = asyncio.create_task(world.progress.follow())
        await scenario(world)
        following.cancel()

    virtual_loop.run(check())


def test_a_start_tells_each_pod_once_and_no_percentages() -> None:
    async def scenario(world: World) -> None:
        await world.pod("demo-decode-0", "starting")
        await world.condition("Progressing", "True", "Scaling")
        assert await world.told() == []
        for share in range(0, 100, 10):
            await world.pod("demo-decode-0", f"loading {share}%")
        assert await world.told() == []
        await world.pod("demo-decode-0", "ready", ready=True)
        assert await world.told() == ["legato: demo-decode-0: ready"]
        assert await world.told() == []

    run(scenario)


def test_a_process_that_ends_is_told_during_a_start() -> None:
    async def scenario(world: World) -> None:
        await world.pod("demo-decode-0", "exited with code 1, starts again in 0.2 s: boom")
        assert await world.told() == ["legato: demo-decode-0: exited with code 1, starts again in 0.2 s: boom"]

    run(scenario)


def test_a_start_without_news_says_what_it_waits_for() -> None:
    async def scenario(world: World) -> None:
        await world.pod("demo-decode-0", "no worker is connected (a long story)")
        for _ in range(2):
            assert await world.told() == []
            await asyncio.sleep(progress.REMINDER)
            assert await world.told() == ["legato: waiting for demo-decode-0: no worker is connected"]

    run(scenario)


def test_after_the_start_only_changes_are_told() -> None:
    async def scenario(world: World) -> None:
        await world.pod("demo-decode-0", "ready", ready=True)
        await world.condition("Ready", "True", "AllReady")
        await world.progress.started()
        await world.told()
        assert await world.told() == []
        for share in (1, 2):
            await world.pod("demo-decode-1", f"loading {share}%")
        told = await world.told()
        assert len(told) == 1
        assert told[0].startswith("legato: demo-decode-1: loading")
        await world.condition("Ready", "False", "NoReadyWorker")
        assert await world.told() == ["legato: Ready: False (NoReadyWorker)"]

    run(scenario)
