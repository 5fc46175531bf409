"""The server process against a scripted core at the other end of the socket pair; gateways are real WebSockets."""

import asyncio
import contextlib
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from legato_engine.core import frames
from legato_engine.core.frames import CoreStatus, CoreTotals, Inbox, Ready, Splitter
from legato_engine.errors import StartFailed
from legato_engine.server.core_link import CoreLink
from legato_engine.server.worker import WorkerServer
from legato_engine.settings import WorkerSettings
from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire import kv_events, stream
from legato_protocol.wire.load import Load
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Generate, Greeting, Hello, Sequence

TOKEN = "a secret"
PATIENCE = 60.0
VOCABULARY = 100


class ScriptedCore:
    """Stands in for a core, and says only what a test has it say."""

    def __init__(self, end, server):
        end.setblocking(False)
        self._end = end
        self._server = server
        self._splitter = Splitter()
        self._received = []
        self.epoch = ""

    async def say(self, frame):
        await asyncio.get_running_loop().sock_sendall(self._end, frames.encode(frame))

    async def hear(self):
        while not self._received:
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._end, 1 << 20), PATIENCE)
            if not data:
                raise ConnectionError("the server closed")
            self._received += [frames.decode_to_core(body) for body in self._splitter.feed(data)]
        return self._received.pop(0)

    async def hear_frame(self):
        """The next frame that a gateway sent, and which gateway."""
        while not (inbox := await self.hear()).frames:
            assert isinstance(inbox, Inbox)
        (only,) = inbox.frames
        return only.gateway, stream.decode_to_worker(only.data)

    async def start(self, begin=None, tiers=(), **fields):
        """Everything up to Ready, which has `fields` in addition to the rest."""
        begin = begin or await self.hear()
        assert isinstance(begin, frames.Start)
        self.epoch = begin.epoch
        await self.say(Ready(msgspec.structs.replace(hello(self.epoch), tiers=tiers), "tokens", VOCABULARY, **fields))

    @property
    def holds_the_server_up(self):
        """The server has more for it than it keeps, and waits until the core has read some."""
        return self._server.get_write_buffer_size() > self._server.get_write_buffer_limits()[1]

    def die(self):
        self._end.close()


async def until(holds):
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while not holds():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


def hello(epoch):
    return Hello("d0", epoch, "decode", "kv", "weights", "layout", 16, 8, 128, b"", "memory")


def fetch(url, method, token, body=None):
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {token}"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Bench:
    """A worker's server in this event loop, and what a test needs to reach it."""

    patience = PATIENCE
    vocabulary = VOCABULARY
    until = staticmethod(until)

    def __init__(self, worker, cores, announce, silence):
        self.worker = worker
        self.silence = silence  # seconds that a core may be silent for
        self.cores = cores
        self._announce = announce
        self.ports = {}
        self.logged = []
        self._kept = []  # one that is let go of closes its socket
        self._ahead = 0.0  # seconds by which the loop's clock is before the machine's
        loop = asyncio.get_running_loop()
        clock = loop.time
        loop.time = lambda: clock() + self._ahead  # type: ignore[method-assign]

    @staticmethod
    def status(*, draining=False, idle=False, order=0, transfer=None, **fields):
        load = Load(0, 0, 0, 5, 2, 1, 0, draining=draining)
        totals = CoreTotals(steps=3, output_tokens=4, transfer=transfer or {})
        return CoreStatus(load, totals, idle, order=order, **fields)

    @staticmethod
    def generate(id="r", tokens=(1, 2, 3), **params):
        wanted = SamplingParams(**{"max_tokens": 4, "seed": 1} | params)
        return Generate(id, 1, Sequence(pack_tokens(tokens), len(tokens), wanted, 30.0))

    @staticmethod
    async def greet(socket):
        await socket.send(stream.encode(Greeting("g0")))
        return await Bench.heard(socket, Hello)

    @staticmethod
    async def heard(socket, kind=object):
        """The next frame, which is of this kind."""
        data = await asyncio.wait_for(socket.recv(), PATIENCE)
        assert isinstance(data, bytes)
        frame = stream.decode_from_worker(data)
        assert isinstance(frame, kind), frame
        return frame

    @staticmethod
    async def event(socket):
        data = await asyncio.wait_for(socket.recv(), PATIENCE)
        assert isinstance(data, bytes)
        return kv_events.decode_event(data)

    @staticmethod
    async def closed(socket):
        """Returns the close code of the server; frames before it are skipped."""
        with contextlib.suppress(ConnectionClosed):
            async for _ in socket:
                pass
        return socket.close_code, socket.close_reason or ""

    async def skip(self, seconds):
        """The clock goes on at once, and all that is due by then happens, as after a stop of the process."""
        self._ahead += seconds
        for _ in range(9):  # what one timer does may take some turns of the loop
            await asyncio.sleep(0)

    async def stay_silent(self, seconds):
        """The clock goes on, in steps so short that the server could have heard its core in between."""
        step = self.silence / 20
        for _ in range(round(seconds / step)):
            await self.skip(step)

    async def wait_ports(self):
        await until(self._announce.exists)
        self.ports = json.loads(self._announce.read_text())

    async def next_core(self):
        """The next core that the server starts, which has said nothing yet."""
        core = await asyncio.wait_for(self.cores.get(), PATIENCE)
        self._kept.append(core)
        return core

    async def core(self, **fields):
        """The next core that the server starts, serving."""
        return await self.serves(await self.next_core(), **fields)

    async def serves(self, core, begin=None, **fields):
        """Serves as that core from here on; it heard `begin` already, if given."""
        await core.start(begin, **fields)
        await until(lambda: self.worker.hub.core is not None)
        return core

    async def reported(self):
        """Returns once the core's status has arrived."""
        await until(lambda: bool(self.worker.hub.core and self.worker.hub.core.status))

    async def metrics(self):
        return (await self.get("health", "/metrics"))[1]

    async def state(self, **options):
        return json.loads((await self.get("control", "/state", **options))[1])

    @contextlib.asynccontextmanager
    async def gateway(self):
        async with self.dial("/stream") as socket:
            await self.greet(socket)
            yield socket

    @contextlib.asynccontextmanager
    async def served(self):
        """A core that serves, and a gateway that was greeted."""
        core = await self.core()
        async with self.gateway() as gateway:
            yield core, gateway

    @contextlib.asynccontextmanager
    async def listener(self):
        async with self.dial("/events") as socket:
            await socket.send(stream.encode(Greeting("g0")))
            yield socket

    def dial(self, path, token=TOKEN):
        headers = {"Authorization": f"Bearer {token}"}
        url = f"ws://127.0.0.1:{self.ports['control']}{path}"
        return connect(url, additional_headers=headers, compression=None, max_size=None, proxy=None)

    async def get(self, port, path, method="GET", token=TOKEN, body=None):
        return await asyncio.to_thread(fetch, f"http://127.0.0.1:{self.ports[port]}{path}", method, token, body)

    async def refused(self, reason):
        text = await self.metrics()
        name = f'legato_worker_refused_frames_total{{reason="{reason}"}} '
        (line,) = [line for line in text.splitlines() if line.startswith(name)]
        return float(line.removeprefix(name))


@contextlib.asynccontextmanager
async def serving(tmp_path, **overrides):
    cores = asyncio.Queue()

    async def launch():
        ours, theirs = socket.socketpair()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=1 << 24)
        cores.put_nowait(ScriptedCore(theirs, writer.transport))
        return CoreLink(reader, writer)

    announce = tmp_path / "ports.json"
    chosen = {"role": "decode", "name": "d0", "model": "m", "health_port": 0, "control_port": 0, "token": TOKEN}
    settings = WorkerSettings(**chosen | {"announce": str(announce)} | overrides)
    logged = []
    worker = WorkerServer(
        settings, lambda _m, _p: Path("/model"), launch, lambda level, text: logged.append(f"{level} {text}")
    )
    bench = Bench(worker, cores, announce, settings.core_silence)
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


@pytest.fixture
def settings():
    """Settings of the server that differ from those of `serving`."""
    return {}


@pytest.fixture
async def bench(tmp_path, settings):
    async with serving(tmp_path, **settings) as made:
        yield made
