"""A scripted worker that sends the real frames over real WebSockets, for tests and the gateway's benchmark.

`fake_engine` computes; here are the sockets, the steps, the heartbeat, and the ways to fail.
"""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from legato_gateway.testing.fake_engine import Fabric, FakeEngine, Stage, TokenAt, token_at
from legato_protocol.names import EVENTS_PATH, STREAM_PATH
from legato_protocol.wire import block_hash, kv_events, stream
from legato_protocol.wire.load import Load
from legato_protocol.wire.messages import MAX_FRAME_BYTES, Message
from legato_protocol.wire.stream import (
    Cancel,
    Failed,
    Generate,
    Greeting,
    Handoff,
    HandoffReport,
    Hello,
    Lost,
    Pause,
    Prefill,
    PromptLogprobs,
    Role,
    Started,
    TokenItem,
    Tokens,
    ToWorker,
)

KV_REVISION: Final = "fake-1"
NUM_BLOCKS: Final = 10_000


@dataclass(frozen=True, slots=True)
class FakeWorkerOptions:
    """`token` is required of gateways. `pace` is seconds per step, `heartbeat` seconds between Loads."""

    token: str = ""
    pace: float = 0.001
    heartbeat: float = 0.05
    credits: int = 10_000
    tokens: TokenAt = token_at
    model: str = "fake"


class FakeWorker:
    """One worker. Workers of one `fabric` hand sequences off to each other."""

    def __init__(
        self,
        name: str,
        role: Role = "unified",
        *,
        fabric: Fabric | None = None,
        options: FakeWorkerOptions | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.received: list[ToWorker] = []  # every frame, in order
        self._fabric = fabric or Fabric()
        self._options = options = options or FakeWorkerOptions()
        self.token = options.token
        self.credits = options.credits
        self.model = options.model
        self.full = False  # it reports no room
        self._server: Server | None = None
        self._port = 0
        self._gateways: list[ServerConnection] = []
        self._readers: list[ServerConnection] = []  # of events
        self._events = 0
        self._stored: dict[bytes, None] = {}
        self._awake = asyncio.Event()
        self._awake.set()
        self._work = asyncio.Event()
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []
        self.engine = self._fresh_engine()

    def _fresh_engine(self) -> FakeEngine:
        return FakeEngine(self.name, secrets.token_hex(8), self._fabric, self._options.tokens)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listens, on the same port again after `kill`."""
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self._port,
            process_request=self._authorize,
            compression=None,
            ping_interval=None,
            close_timeout=0.1,
            max_size=MAX_FRAME_BYTES,
        )
        self._port = next(iter(self._server.sockets)).getsockname()[1]
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._beat())]

    async def kill(self) -> None:
        """Dies like a process under SIGKILL: connections are reset, memory is lost. `start` makes a new one."""
        assert self._server is not None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.engine.stop()
        self.disconnect()
        self._server.close(close_connections=False)
        await self._server.wait_closed()
        self._events, self._stored = 0, {}
        self._awake.set()
        self.engine = self._fresh_engine()

    async def __aenter__(self) -> "FakeWorker":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    def disconnect(self) -> None:
        """Resets every connection. The worker lives on, without the work of these gateways."""
        for connection in (*self._gateways, *self._readers):
            connection.transport.abort()

    def hang(self) -> None:
        """Stops as under SIGSTOP: sockets stay open, and nothing is read, computed or sent."""
        self._awake.clear()

    def wake(self) -> None:
        """Continues after `hang`."""
        self._awake.set()

    async def lose_core(self) -> None:
        """Ends its compute process, and reports that."""
        epoch = self.engine.epoch
        self.engine.stop()
        self._events, self._stored = 0, {}
        await self.say(Lost(epoch, "scripted"))

    async def restart_core(self) -> None:
        """Starts a new compute process, with a new epoch."""
        self.engine = self._fresh_engine()
        await self.say(self._hello())

    async def drain(self) -> None:
        """Reports that it drains."""
        self.engine.draining = True
        await self.say(self._load())

    async def say(self, frame: Message) -> None:
        """Sends any frame to every gateway."""
        await self._send(self._gateways, stream.encode(frame))

    # ── script ──────────────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, stage: Stage, after: int = 0) -> None:
        """Keeps sequences that reach that stage there."""
        self.engine.hold(stage, after)

    def release(self) -> None:
        """Lets all held sequences continue."""
        self.engine.release()
        self._work.set()

    async def wait(self, condition: Callable[[], bool]) -> None:
        """Waits until `condition` holds; it is checked after every step and frame."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def wait_at(self, stage: Stage, count: int = 1) -> None:
        """Waits until `count` sequences are held at that stage."""
        await self.wait(lambda: len(self.engine.at(stage)) >= count)

    def got(self, kind: type[Message]) -> list[ToWorker]:
        """Returns the received frames of that kind."""
        return [frame for frame in self.received if isinstance(frame, kind)]

    # ── sockets ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _authorize(self, connection: ServerConnection, request: Request) -> Response | None:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return connection.respond(HTTPStatus.UNAUTHORIZED, "wrong token\n")
        if request.path not in (STREAM_PATH, EVENTS_PATH):
            return connection.respond(HTTPStatus.NOT_FOUND, "no such path\n")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        events = connection.request.path == EVENTS_PATH
        known = self._readers if events else self._gateways
        try:
            await (self._serve_events if events else self._serve_stream)(connection)
        except ConnectionClosed:
            pass
        finally:
            if connection in known:
                known.remove(connection)
            self.engine.jobs = {key: job for key, job in self.engine.jobs.items() if key[0] is not connection}
            await self._notify()

    async def _serve_stream(self, connection: ServerConnection) -> None:
        greeting = stream.decode_to_worker(await connection.recv(decode=False))
        assert isinstance(greeting, Greeting)
        await connection.send(stream.encode(self._hello()))
        await connection.send(stream.encode(self._load()))
        self._gateways.append(connection)
        async for data in connection:
            assert isinstance(data, bytes)
            await self._awake.wait()
            await self._take(connection, stream.decode_to_worker(data))
            await self._notify()

    async def _take(self, connection: ServerConnection, frame: ToWorker) -> None:
        self.received.append(frame)
        engine, answer = self.engine, None
        if isinstance(frame, Cancel):
            engine.cancel(connection, frame)
        elif isinstance(frame, stream.Split):
            engine.split(connection, frame)
        elif isinstance(frame, Pause):
            engine.pause(connection, frame.id, frame.on)
        elif isinstance(frame, Handoff):
            answer = engine.move(connection, frame)
        elif isinstance(frame, Generate | Prefill | stream.Decode):
            answer = engine.accept(connection, frame)
        if answer is not None:
            await connection.send(stream.encode(answer))
        self._work.set()

    async def _serve_events(self, connection: ServerConnection) -> None:
        kv_events.decode_request(await connection.recv(decode=False))
        await connection.send(self._snapshot())
        self._readers.append(connection)
        async for data in connection:
            assert isinstance(data, bytes)
            kv_events.decode_request(data)
            await connection.send(self._snapshot())

    def _snapshot(self) -> bytes:
        hashes = block_hash.join(list(self._stored))
        return stream.encode(kv_events.Snapshot(self.engine.epoch, self._events, 0, True, hashes))

    def _hello(self) -> Hello:
        return Hello(
            worker=self.name,
            epoch=self.engine.epoch,
            role=self.role,
            kv_revision=KV_REVISION,
            weights="fake",
            layout="fake",
            block_size=16,
            num_blocks=NUM_BLOCKS,
            max_length=1 << 20,
            address=self.name.encode(),
            transport="memory",
            model=self.model,
            params=("prompt_logprobs",),
            ranks=2,
        )

    def _load(self) -> Load:
        jobs = self.engine.jobs.values()
        queued = sum(job.sequence.prompt_len for job in jobs if job.stage in ("queued", "prefilling"))
        used = NUM_BLOCKS if self.full else min(len(jobs), NUM_BLOCKS)
        return Load(
            queue_tokens=queued,
            waiting=sum(job.stage == "queued" for job in jobs),
            running=sum(job.stage != "queued" for job in jobs),
            free_blocks=NUM_BLOCKS - used,
            cached_blocks=0,
            used_blocks=used,
            quarantined_blocks=0,
            draining=self.engine.draining,
            credits=max(0, self.credits - len(jobs)),
            slots=0,
        )

    # ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            await self._awake.wait()
            if not self.engine.busy:
                self._work.clear()
                await self._notify()
                continue
            await self._step()
            await self._notify()
            await asyncio.sleep(self._options.pace)

    async def _step(self) -> None:
        items: dict[ServerConnection, list[TokenItem]] = {}
        for gateway, output in self.engine.step():
            assert isinstance(gateway, ServerConnection)
            if isinstance(output, Started | PromptLogprobs | HandoffReport | Failed):
                await self._send([gateway], stream.encode(output))
            else:
                items.setdefault(gateway, []).append(output)
        for gateway, tokens in items.items():
            await self._send([gateway], stream.encode(Tokens(tuple(tokens))))
        await self._store()

    async def _store(self) -> None:
        """Sends events for the blocks of prompts that were computed here."""
        root = block_hash.root(KV_REVISION)
        while self.engine.prompts:
            hashes = block_hash.chain(self.engine.prompts.popleft(), 16, root)
            fresh = [block for block in hashes if block not in self._stored]
            if fresh:
                self._events += 1
                self._stored.update(dict.fromkeys(fresh))
                event = kv_events.Stored(self.engine.epoch, self._events, block_hash.join(fresh))
                await self._send(self._readers, stream.encode(event))

    async def _beat(self) -> None:
        while True:
            await self._awake.wait()
            await self.say(self._load())
            await asyncio.sleep(self._options.heartbeat)

    async def _send(self, connections: list[ServerConnection], frame: bytes) -> None:
        for connection in list(connections):
            try:
                await connection.send(frame)
            except ConnectionClosed:
                continue

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
