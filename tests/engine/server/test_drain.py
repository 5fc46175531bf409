"""Draining and stopping, and what stops a start."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from legato_engine.core.frames import (
    Inbox,
    Turn,
)
from legato_engine.server import core_link
from legato_engine.server.worker import WorkerServer
from legato_engine.settings import WorkerSettings
from legato_protocol.flags import SettingsError


def test_draining_reaches_the_core_and_stopping_waits_until_nothing_runs(run: Any) -> None:
    async def test(bench: Any) -> None:
        core = await bench.core()
        assert (await bench.get("control", "/drain", "POST"))[0] == 202
        inbox = await core.hear()
        assert isinstance(inbox, Inbox)
        assert inbox.drain
        assert (await bench.get("health", "/readyz"))[0] == 503
        bench.worker.stop()
        await core.say(Turn(status=bench.status(draining=True)))
        await bench.until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.status))
        assert not bench.worker.hub.drained
        await core.say(Turn(status=bench.status(draining=True, idle=True)))
        with pytest.raises(ConnectionError):
            await core.hear()
        await bench.until(lambda: "INFO drained" in bench.logged)

    run(test)


def test_the_drain_deadline_ends_what_still_runs(run: Any) -> None:
    async def test(bench: Any) -> None:
        core = await bench.core()
        await core.say(Turn(status=bench.status()))
        bench.worker.stop()
        with contextlib.suppress(ConnectionError):
            while True:
                await core.hear()
        assert any("deadline" in line for line in bench.logged)

    run(test, drain_deadline=0.2)


def test_a_port_that_is_taken_is_said_before_anything_starts(run: Any) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            settings = WorkerSettings("decode", "d", "m", health_port=port, control_port=0, token="a secret")
            worker = WorkerServer(settings, lambda _m, _p: Path("/model"), core_link.launch, lambda _level, _text: None)
            with pytest.raises(SettingsError, match=f"--health-port is {port}"):
                await worker.run()

    asyncio.run(body())
