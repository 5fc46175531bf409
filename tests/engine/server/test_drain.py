"""Draining and stopping, and what stops a start."""

import contextlib
import json
import socket
from pathlib import Path

import pytest

from legato_engine.core.frames import IterationReport
from legato_engine.server import core_link
from legato_engine.server.worker import WorkerServer
from legato_engine.settings import WorkerSettings
from legato_protocol.settings.flags import SettingsError


async def test_draining_reaches_the_core_and_stopping_waits_until_nothing_runs(bench):
    core = await bench.core()
    assert (await bench.get("control", "/drain", "POST"))[0] == 202
    inbox = await core.hear()
    assert inbox.drain
    assert (await bench.get("health", "/readyz"))[0] == 200, "it may be recalled, and serves at once then"
    bench.worker.stop()
    assert await bench.get("health", "/readyz") == (503, "stopping\n")
    await core.say(IterationReport(status=bench.status(draining=True, order=inbox.order)))
    await bench.reported()
    assert not bench.worker.hub.drained
    await core.say(IterationReport(status=bench.status(draining=True, idle=True, order=inbox.order)))
    with pytest.raises(ConnectionError):
        await core.hear()
    await bench.until(lambda: "INFO drained" in bench.logged)


async def test_a_draining_worker_that_is_recalled_serves_again_and_one_that_stops_is_not_recalled(bench):
    core = await bench.core()
    await bench.get("control", "/drain", "POST")
    assert (await core.hear()).drain is True
    status, answer = await bench.get("control", "/drain", "DELETE")
    assert (status, json.loads(answer)) == (200, {"draining": False})
    inbox = await core.hear()
    assert (inbox.drain, inbox.order) == (False, 2)
    assert (await bench.get("health", "/readyz"))[0] == 200
    assert (await bench.get("control", "/drain", "DELETE"))[0] == 200, "whoever asks twice is not refused"
    assert not (await bench.state())["stopping"]
    bench.worker.stop()
    status, answer = await bench.get("control", "/drain", "DELETE")
    assert (status, json.loads(answer)) == (409, {"draining": True})
    assert (await bench.state())["stopping"]


async def test_what_the_core_said_before_it_was_recalled_does_not_end_it(bench):
    core, hub = await bench.core(), bench.worker.hub
    await bench.get("control", "/drain", "POST")
    first = await core.hear()
    await core.say(IterationReport(status=bench.status(draining=True, idle=True, order=first.order)))
    await bench.until(lambda: hub.drained)
    await bench.get("control", "/drain", "DELETE")
    bench.worker.drain()
    assert not hub.drained
    last = await core.hear()
    while not last.drain:
        last = await core.hear()
    await core.say(IterationReport(status=bench.status(draining=True, idle=True, order=last.order)))
    await bench.until(lambda: hub.drained)


@pytest.mark.parametrize("settings", [{"drain_deadline": 0.2}])
async def test_the_drain_deadline_ends_what_still_runs(bench):
    core = await bench.core()
    await core.say(IterationReport(status=bench.status()))
    bench.worker.stop()
    with contextlib.suppress(ConnectionError):
        while True:
            await core.hear()
    assert any("deadline" in line for line in bench.logged)


async def test_a_port_that_is_taken_is_said_before_anything_starts():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        settings = WorkerSettings("decode", "d", "m", health_port=port, control_port=0, token="a secret")
        worker = WorkerServer(settings, lambda _m, _p: Path("/model"), core_link.launch, lambda _level, _text: None)
        with pytest.raises(SettingsError, match=f"--health-port is {port}"):
            await worker.run()
