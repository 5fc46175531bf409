"""A start says what is ready, and from then on each change is reported once; a terminal rewrites its last line."""

import asyncio
import io

import local_services
import pytest
from local_services import DEMO

from legato_cli.local import progress
from legato_cli.local.progress import Progress
from legato_cli.local.terminal import Terminal
from legato_operator.cluster import Ref
from legato_operator.local.store import Store

pytestmark = pytest.mark.virtual_time
LABELS = {"serving.legato.dev/service": "demo", "serving.legato.dev/role": "decode"}


class World:
    """A service with pods whose states a test sets."""

    def __init__(self):
        self.store, self.out = Store(lambda: "now"), io.StringIO()
        self.progress = Progress(self.store, DEMO, Terminal(self.out, self.out))

    async def pod(self, name, message, ready=False):
        item = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS}, "spec": {}}
        await self.store.apply(item, "operator", force=True)
        condition = {"type": "Ready", "status": str(ready), "message": message}
        await self.store.patch_status(Ref("Pod", "default", name), {"conditions": [condition]})

    async def condition(self, type, status, reason):
        condition = {"type": type, "status": status, "reason": reason, "message": ""}
        await self.store.patch_status(DEMO, {"conditions": [condition]})

    async def lines(self):
        """The lines since it was asked last, after some polls of the cluster."""
        await asyncio.sleep(5 * progress.INTERVAL)
        text = self.out.getvalue()
        self.out.seek(0)
        self.out.truncate()
        return text.splitlines()


@pytest.fixture
async def world():
    world = World()
    await world.store.apply(local_services.manifest(), "user")
    following = asyncio.create_task(world.progress.follow())
    yield world
    following.cancel()


async def test_a_start_reports_each_pod_once_and_no_percentages(world):
    await world.pod("demo-decode-0", "starting")
    await world.condition("Progressing", "True", "Scaling")
    assert await world.lines() == []
    for share in range(0, 100, 10):
        await world.pod("demo-decode-0", f"loading {share}%")
    assert await world.lines() == []
    await world.pod("demo-decode-0", "ready", ready=True)
    assert await world.lines() == ["legato: demo-decode-0: ready"]
    assert await world.lines() == []


async def test_a_process_that_ends_is_reported_during_a_start(world):
    await world.pod("demo-decode-0", "exited with code 1, starts again in 0.2 s: boom")
    assert await world.lines() == ["legato: demo-decode-0: exited with code 1, starts again in 0.2 s: boom"]


async def test_a_service_that_is_at_zero_before_its_start_ends_says_so_afterwards(world):
    await world.condition("Ready", "True", "ScaledToZero")
    assert await world.lines() == []
    await world.progress.started()
    assert await world.lines() == ["legato: Ready: True (ScaledToZero)"]


async def test_after_the_start_only_changes_are_reported(world):
    await world.pod("demo-decode-0", "ready", ready=True)
    await world.condition("Ready", "True", "AllReady")
    await world.progress.started()
    await world.lines()
    assert await world.lines() == []
    for share in (1, 2):
        await world.pod("demo-decode-1", f"loading {share}%")
    (line,) = await world.lines()
    assert line.startswith("legato: demo-decode-1: loading")
    await world.condition("Ready", "False", "NoReadyWorker")
    assert await world.lines() == ["legato: Ready: False (NoReadyWorker)"]


class Screen(io.StringIO):
    def isatty(self):
        return True


def test_a_file_gets_only_lines():
    out, err = io.StringIO(), io.StringIO()
    terminal = Terminal(out, err)
    terminal.say("a")
    terminal.update("loading 1%")
    terminal.log("worker: b\n")
    terminal.say("c")
    assert (out.getvalue(), err.getvalue()) == ("a\nc\n", "worker: b\n")


@pytest.mark.parametrize("write", [Terminal.say, Terminal.log])
def test_a_terminal_rewrites_its_last_line_and_no_other_runs_into_it(write, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    terminal = Terminal(out := Screen(), out)
    for text in ("loading 1%", "loading 1%", "x" * 100):
        terminal.update(text)
    expected = "\r\x1b[Kloading 1%\r\x1b[K" + "x" * 19
    assert out.getvalue() == expected, "at most as long as the terminal is wide"
    write(terminal, "ready")
    write(terminal, "ready")
    assert out.getvalue().startswith(f"{expected}\r\x1b[Kready")
    assert out.getvalue().count("\x1b[K") == 3
