"""The server process against a scripted core at the other end of the socket pair; gateways are real WebSockets."""

import asyncio
import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from legato_engine.core import frames
from legato_engine.core.frames import (
    Beat,
    ForGateway,
    Inbox,
    Loading,
    NotStarting,
    Ready,
    Splitter,
    Status,
    Totals,
    Turn,
)
from legato_engine.errors import SettingsError, StartFailed
from legato_engine.server import core_link
from legato_engine.server.core_link import CoreLink
from legato_engine.server.worker import Worker
from legato_engine.settings import Settings
from legato_protocol import block_hash, kv_events, stream
from legato_protocol.kv_events import Removed, Snapshot, SnapshotRequest, Stored
from legato_protocol.stream import (
    Cancel,
    Failed,
    Generate,
    Greeting,
    HandoffReport,
    Hello,
    Load,
    Lost,
    SamplingParams,
    Sequence,
    TokenItem,
    Tokens,
    pack_tokens,
)

TOKEN = "a secret"
PATIENCE = 10.0
VOCABULARY = 100


class ScriptedCore:
    """What a test says in a core's place."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._splitter = Splitter()
        self._received: list[frames.ToCore] = []
        self.epoch = ""

    async def say(self, frame: frames.FromCore) -> None:
        await asyncio.get_running_loop().sock_sendall(self._end, frames.encode(frame))

    async def hear(self) -> frames.ToCore:
        while not self._received:
            data = await asyncio.get_running_loop().sock_recv(self._end, 1 << 20)
            if not data:
                raise ConnectionError("the server closed")
            self._received += [frames.decode_to_core(body) for body in self._splitter.feed(data)]
        return self._received.pop(0)

    async def hear_frames(self) -> list[frames.FromGateway]:
        while True:
            inbox = await self.hear()
            assert isinstance(inbox, Inbox)
            if inbox.frames:
                return list(inbox.frames)

    async def start(self) -> None:
        """Everything up to Ready."""
        begin = await self.hear()
        assert isinstance(begin, frames.Start)
        self.epoch = begin.epoch
        await self.say(Ready(hello(self.epoch), "tokens", VOCABULARY))

    def die(self) -> None:
        self._end.close()


class Bench:
    """A worker's server in this event loop, and what a test needs to reach it."""

    def __init__(self, worker: Worker, cores: "asyncio.Queue[ScriptedCore]", announce: Path) -> None:
        self.worker = worker
        self.cores = cores
        self._announce = announce
        self.ports: dict[str, int] = {}
        self.logged: list[str] = []
        self.running: asyncio.Task[None]
        self._kept: list[ScriptedCore] = []  # one that is let go of closes its socket

    async def wait_ports(self) -> None:
        await until(self._announce.exists)
        self.ports = json.loads(self._announce.read_text())

    async def core(self) -> ScriptedCore:
        """The next core that the server starts, serving."""
        core = await asyncio.wait_for(self.cores.get(), PATIENCE)
        self._kept.append(core)
        await core.start()
        await until(lambda: self.worker.hub.core is not None)
        return core

    def dial(self, path: str, token: str = TOKEN) -> connect:
        headers = {"Authorization": f"Bearer {token}"}
        url = f"ws://127.0.0.1:{self.ports['control']}{path}"
        return connect(url, additional_headers=headers, compression=None, max_size=None, proxy=None)

    async def get(self, port: str, path: str, method: str = "GET", token: str = TOKEN) -> tuple[int, str]:
        return await asyncio.to_thread(fetch, f"http://127.0.0.1:{self.ports[port]}{path}", method, token)

    async def refused(self, reason: str) -> float:
        _, text = await self.get("health", "/metrics")
        name = f'legato_worker_refused_frames_total{{reason="{reason}"}} '
        (line,) = [line for line in text.splitlines() if line.startswith(name)]
        return float(line.removeprefix(name))


def fetch(url: str, method: str, token: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def until(holds: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not holds():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(tmp_path: Path, **overrides: object) -> AsyncIterator[Bench]:
    cores: asyncio.Queue[ScriptedCore] = asyncio.Queue()

    async def launch() -> CoreLink:
        ours, theirs = socket.socketpair()
        cores.put_nowait(ScriptedCore(theirs))
        return await core_link.connect(ours)

    announce = tmp_path / "ports.json"
    chosen = {"role": "decode", "name": "d0", "model": "m", "health_port": 0, "control_port": 0, "token": TOKEN}
    settings = Settings(**chosen | {"announce": str(announce)} | overrides)
    logged: list[str] = []
    worker = Worker(
        settings, lambda _m, _p: Path("/model"), launch, lambda level, text: logged.append(f"{level} {text}")
    )
    bench = Bench(worker, cores, announce)
    bench.logged = logged
    running = bench.running = asyncio.create_task(worker.run())
    try:
        await bench.wait_ports()
        yield bench
    finally:
        if not running.done():
            worker.stop()
            worker.stop()
        with contextlib.suppress(StartFailed):
            await asyncio.wait_for(running, PATIENCE)


def run(tmp_path: Path, test: Callable[[Bench], Awaitable[None]], **overrides: object) -> None:
    async def body() -> None:
        async with asyncio.timeout(3 * PATIENCE), serving(tmp_path, **overrides) as bench:
            await test(bench)

    asyncio.run(body())


def hello(epoch: str) -> Hello:
    return Hello("d0", epoch, "decode", "kv", "weights", "layout", 16, 8, 128, b"", "memory")


def status(*, draining: bool = False, idle: bool = False) -> Status:
    load = Load(0, 0, 0, 5, 2, 1, 0, draining=draining)
    return Status(load, Totals(steps=3, output_tokens=4), idle)


def generate(id: str = "r", tokens: tuple[int, ...] = (1, 2, 3), **params: object) -> Generate:
    wanted = SamplingParams(**{"max_tokens": 4, "seed": 1} | params)
    return Generate(id, 1, Sequence(pack_tokens(tokens), len(tokens), wanted, 30.0))


async def greet(socket: ClientConnection) -> Hello:
    await socket.send(stream.encode(Greeting("g0")))
    first = await heard(socket)
    assert isinstance(first, Hello)
    return first


async def heard(socket: ClientConnection) -> stream.FromWorker:
    data = await asyncio.wait_for(socket.recv(), PATIENCE)
    assert isinstance(data, bytes)
    return stream.decode_from_worker(data)


async def event(socket: ClientConnection) -> kv_events.KVEvent:
    data = await asyncio.wait_for(socket.recv(), PATIENCE)
    assert isinstance(data, bytes)
    return kv_events.decode_event(data)


async def closed(socket: ClientConnection) -> tuple[int | None, str]:
    """How the server closed; frames before it are skipped."""
    with contextlib.suppress(ConnectionClosed):
        async for _ in socket:
            pass
    return socket.close_code, socket.close_reason or ""


# ── probes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_readiness_tells_the_phase_and_comes_with_the_core(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await asyncio.wait_for(bench.cores.get(), PATIENCE)
        await core.say(Loading("loading", 0.42))
        await until(lambda: bench.worker.hub.phase != "resolving")
        assert await bench.get("health", "/readyz") == (503, "loading 42%\n")
        assert (await bench.get("health", "/healthz"))[0] == 200
        await core.start()
        await until(lambda: bench.worker.hub.core is not None)
        assert await bench.get("health", "/readyz") == (200, "ready\n")

    run(tmp_path, test)


def test_the_control_port_wants_the_token(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.core()
        assert (await bench.get("control", "/state", token="wrong"))[0] == 401
        assert (await bench.get("control", "/drain", "POST", token=""))[0] == 401
        with pytest.raises(InvalidStatus) as refused:
            async with bench.dial("/stream", token="wrong"):
                pass
        assert refused.value.response.status_code == 401
        assert (await bench.get("control", "/state"))[0] == 200
        assert await bench.refused("unauthorized") == 3
        assert not bench.worker.hub.draining

    run(tmp_path, test)


def test_state_and_metrics_show_what_the_core_said(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        report = HandoffReport("r", 1, 9, "p0", 4, 1, 4096, 0.01, 0.001, "memory")
        await core.say(Turn(handoffs=(report,), status=status()))
        await until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.status))
        state = json.loads((await bench.get("control", "/state"))[1])
        assert state["blocks"] == {"free": 5, "cached": 2, "used": 1, "quarantined": 0}
        assert (state["epoch"], state["kv_revision"], state["role"]) == (core.epoch, "kv", "decode")
        assert [(told["source"], told["room"], told["blocks"]) for told in state["handoffs"]] == [("p0", 9, 4)]
        text = (await bench.get("health", "/metrics"))[1]
        assert "legato_worker_steps_total 3.0" in text
        assert "legato_worker_free_blocks 5.0" in text

    run(tmp_path, test)


# ── streams ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_frames_pass_between_a_gateway_and_the_core(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        async with bench.dial("/stream") as gateway:
            assert (await greet(gateway)).epoch == core.epoch
            await gateway.send(stream.encode(generate()))
            (forwarded,) = await core.hear_frames()
            assert stream.decode_to_worker(forwarded.data) == generate()
            tokens = Tokens((TokenItem("r", 1, 0, 0, (5,)),))
            answer = ForGateway(forwarded.gateway, stream.encode(tokens))
            await core.say(Turn(frames=(answer,), everyone=(stream.encode(status().load),), status=status()))
            assert await heard(gateway) == tokens
            assert isinstance(await heard(gateway), Load)
        inbox = await core.hear()
        assert isinstance(inbox, Inbox)
        assert inbox.left == (forwarded.gateway,)

    run(tmp_path, test)


def test_a_gateway_that_came_early_is_greeted_when_the_core_is_ready(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        async with bench.dial("/stream") as gateway:
            await gateway.send(stream.encode(Greeting("g0")))
            await gateway.send(stream.encode(generate()))
            early = await heard(gateway)
            assert isinstance(early, Failed)
            assert (early.code, early.retry) == ("stale", True)
            core = await bench.core()
            greeting = await heard(gateway)
            assert isinstance(greeting, Hello)
            inbox = await core.hear()
            assert isinstance(inbox, Inbox)
            assert len(inbox.joined) == 1
            assert inbox.frames == ()

    run(tmp_path, test)


def test_a_core_that_dies_is_reported_at_once_and_replaced(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        first = await bench.core()
        async with bench.dial("/stream") as gateway, bench.dial("/events") as listener:
            await greet(gateway)
            await listener.send(stream.encode(Greeting("g0")))
            assert isinstance(await event(listener), Snapshot)
            await first.say(Turn(status=status()))
            first.die()
            lost = await heard(gateway)
            assert isinstance(lost, Lost)
            assert lost.epoch == first.epoch
            second = await bench.core()
            again = await heard(gateway)
            assert isinstance(again, Hello)
            assert again.epoch == second.epoch != first.epoch
            fresh = await event(listener)
            assert isinstance(fresh, Snapshot)
            assert (fresh.epoch, fresh.number) == (second.epoch, 0)
            await second.say(Turn(status=status()))
            await until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.status))
            text = (await bench.get("health", "/metrics"))[1]
            assert "legato_worker_core_restarts_total 1.0" in text
            assert "legato_worker_steps_total 6.0" in text

    run(tmp_path, test)


def test_a_silent_core_is_replaced_and_one_that_beats_is_not(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        async with bench.dial("/stream") as gateway:
            await greet(gateway)
            for _ in range(6):  # for longer than the silence that is allowed, and each in good time on a slow machine
                await core.say(Beat())
                await asyncio.sleep(0.25)
            assert bench.worker.hub.core is not None
            lost = await heard(gateway)
            assert isinstance(lost, Lost)
            assert "silent" in lost.reason
            await bench.core()

    run(tmp_path, test, core_silence=1.0)


def test_a_server_that_was_stopped_itself_does_not_take_its_core_for_silent(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        async with bench.dial("/stream") as gateway:
            await greet(gateway)
            time.sleep(2.5)  # noqa: ASYNC251 – nothing runs meanwhile, as under SIGSTOP
            for _ in range(3):
                await asyncio.sleep(0)  # timers that are due come before the core
            await core.say(Beat())
            await core.say(Turn(status=status()))
            await until(lambda: bool(bench.worker.hub.core is None or bench.worker.hub.core.status))
            assert bench.worker.hub.core is not None
            assert isinstance(await heard(gateway), Lost)  # a silence of its own is still noticed

    run(tmp_path, test, core_silence=1.0)


def test_a_core_that_is_stuck_in_a_step_is_replaced_although_its_heart_beats(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        async with bench.dial("/stream") as gateway:
            await greet(gateway)
            await core.say(Beat(turn=4, busy=2.9))
            await core.say(Beat(turn=5, busy=3.1))
            lost = await heard(gateway)
            assert isinstance(lost, Lost)
            assert "stuck in turn 5" in lost.reason
            await bench.core()

    run(tmp_path, test, step_limit=3.0)


def test_gateways_hear_of_a_silent_core_while_its_end_is_still_awaited(tmp_path: Path) -> None:
    """A core that is stopped reads nothing: what waits for it must not delay the news."""

    async def test(bench: Bench) -> None:
        await bench.core()
        async with bench.dial("/stream") as gateway:
            await greet(gateway)
            for n in range(40):  # more than the socket pair takes
                await gateway.send(stream.encode(generate(f"r{n}", tuple(range(1, 99)) * 500)))
            assert isinstance(await heard(gateway), Lost)
            await bench.core()

    run(tmp_path, test, core_silence=0.5)


def test_a_start_that_can_never_succeed_ends_the_worker(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await asyncio.wait_for(bench.cores.get(), PATIENCE)
        await core.hear()
        await core.say(NotStarting("KV memory is too small"))
        with pytest.raises(ConnectionError):
            await core.hear()
        with pytest.raises(StartFailed, match="too small"):
            await asyncio.wait_for(bench.running, PATIENCE)
        assert bench.cores.empty()

    run(tmp_path, test)


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bad_frame_with_an_id_is_answered_and_the_stream_goes_on(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        async with bench.dial("/stream") as gateway:
            await greet(gateway)
            bad = msgspec.msgpack.encode(["gen", "broken", 3, {"no": "sequence"}])
            await gateway.send(bad)
            answer = await heard(gateway)
            assert isinstance(answer, Failed)
            assert (answer.id, answer.attempt, answer.code, answer.retry) == ("broken", 3, "invalid", False)
            await gateway.send(stream.encode(generate(tokens=(1, VOCABULARY))))
            answer = await heard(gateway)
            assert isinstance(answer, Failed)
            assert answer.code == "invalid"
            await gateway.send(stream.encode(generate(top_p=float("nan"))))
            assert isinstance(await heard(gateway), Failed)
            await gateway.send(stream.encode(Cancel("x", 1)))
            (only,) = await core.hear_frames()
            assert stream.decode_to_worker(only.data) == Cancel("x", 1)
        assert await bench.refused("malformed") == 1
        assert await bench.refused("invalid") == 2

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("frame", "code", "reason"),
    [
        (b"\xc1 no msgpack", 1002, "malformed"),
        (b"", 1002, "malformed"),
        ("text", 1003, "text"),
        (stream.encode(Greeting("again")), 1002, "malformed"),
        (bytes(stream.MAX_FRAME_BYTES + 1), 1009, "oversized"),
    ],
)
@pytest.mark.parametrize("path", ["/stream", "/events"])
def test_garbage_closes_the_offenders_connection_only(
    tmp_path: Path, path: str, frame: bytes | str, code: int, reason: str
) -> None:
    async def test(bench: Bench) -> None:
        await bench.core()
        async with bench.dial("/stream") as bystander, bench.dial(path) as offender:
            await greet(bystander)
            await offender.send(stream.encode(Greeting("g1")))
            with contextlib.suppress(ConnectionClosed):
                await offender.send(frame)
            assert (await closed(offender))[0] == code
            counted = "greeting" if path == "/events" and frame == stream.encode(Greeting("again")) else reason
            assert await bench.refused(counted) == 1
            await bystander.send(stream.encode(generate(tokens=(-1,))))
            assert isinstance(await heard(bystander), Failed)

    run(tmp_path, test)


def test_a_first_frame_must_be_a_greeting_of_this_version(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.core()
        async with bench.dial("/stream") as stranger:
            await stranger.send(stream.encode(Greeting("g", version=stream.VERSION + 1)))
            code, text = await closed(stranger)
            assert code == 1008
            assert str(stream.VERSION + 1) in text
        async with bench.dial("/stream") as rude:
            await rude.send(stream.encode(generate()))
            assert (await closed(rude))[0] == 1002
        assert await bench.refused("version") == 1
        assert await bench.refused("greeting") == 1

    run(tmp_path, test)


def test_a_gateway_that_does_not_read_is_cut_off(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        async with bench.dial("/stream") as reader, bench.dial("/stream") as deaf:
            await greet(reader)
            await greet(deaf)
            deaf.transport.pause_reading()
            reading = asyncio.create_task(count_frames(reader))
            big = bytes(1 << 20)
            for _ in range(64):
                await core.say(Turn(everyone=(big,)))
            await until(lambda: bench.worker.hub.gateways == 1)
            assert not reading.done()
            reading.cancel()
            deaf.transport.abort()
        assert await bench.refused("slow") == 1

    run(tmp_path, test)


async def count_frames(socket: ClientConnection) -> None:
    async for _ in socket:
        pass


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def hashes(*numbers: int) -> bytes:
    return block_hash.join([number.to_bytes(block_hash.HASH_BYTES, "little") for number in numbers])


def test_a_listener_gets_a_snapshot_and_then_what_follows_on_it(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        told = (Stored(core.epoch, 1, hashes(1, 2, 3)), Removed(core.epoch, 2, hashes(2)))
        await core.say(Turn(events=tuple(map(stream.encode, told))))
        await until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.stored.number == 2))
        async with bench.dial("/events") as listener:
            await listener.send(stream.encode(Greeting("g0")))
            assert await event(listener) == Snapshot(core.epoch, 2, 0, True, hashes(1, 3))
            await core.say(Turn(events=(stream.encode(Stored(core.epoch, 3, hashes(4))),)))
            assert await event(listener) == Stored(core.epoch, 3, hashes(4))
            await listener.send(stream.encode(SnapshotRequest()))
            assert await event(listener) == Snapshot(core.epoch, 3, 0, True, hashes(1, 3, 4))

    run(tmp_path, test)


def test_a_large_snapshot_comes_in_pages(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        everything = hashes(*range(70_000))
        await core.say(Turn(events=(stream.encode(Stored(core.epoch, 1, everything)),)))
        await until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.stored.number == 1))
        async with bench.dial("/events") as listener:
            await listener.send(stream.encode(Greeting("g0")))
            pages = [await event(listener) for _ in range(3)]
        assert all(isinstance(page, Snapshot) for page in pages)
        assert [page.page for page in pages] == [0, 1, 2]
        assert [page.last for page in pages] == [False, False, True]
        assert b"".join(page.hashes for page in pages) == everything

    run(tmp_path, test)


# ── drain ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_draining_reaches_the_core_and_stopping_waits_until_nothing_runs(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        assert (await bench.get("control", "/drain", "POST"))[0] == 202
        inbox = await core.hear()
        assert isinstance(inbox, Inbox)
        assert inbox.drain
        assert (await bench.get("health", "/readyz"))[0] == 503
        bench.worker.stop()
        await core.say(Turn(status=status(draining=True)))
        await until(lambda: bool(bench.worker.hub.core and bench.worker.hub.core.status))
        assert not bench.worker.hub.drained
        await core.say(Turn(status=status(draining=True, idle=True)))
        with pytest.raises(ConnectionError):
            await core.hear()
        await until(lambda: "INFO drained" in bench.logged)

    run(tmp_path, test)


def test_the_drain_deadline_ends_what_still_runs(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        core = await bench.core()
        await core.say(Turn(status=status()))
        bench.worker.stop()
        with contextlib.suppress(ConnectionError):
            while True:
                await core.hear()
        assert any("deadline" in line for line in bench.logged)

    run(tmp_path, test, drain_deadline=0.2)


def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path: Path) -> None:
    async def body() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            settings = Settings("decode", "d", "m", health_port=port, control_port=0, token=TOKEN)
            worker = Worker(settings, lambda _m, _p: Path("/model"), core_link.launch, lambda _level, _text: None)
            with pytest.raises(SettingsError, match=f"--health-port is {port}"):
                await worker.run()

    asyncio.run(body())
