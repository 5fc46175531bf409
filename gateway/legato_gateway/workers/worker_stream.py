"""The two WebSockets of one worker: greeting, sending, reading, detecting silence, and reconnecting.

Frames are decoded here once and passed to a `StreamListener`, which interprets them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import WebSocketException

from legato_gateway.discovery.addresses import WorkerAddress
from legato_gateway.timers import Backoff
from legato_gateway.workers.connecting import Connector, reason
from legato_gateway.workers.silence import Silence, StreamLimits
from legato_gateway.workers.stream_listener import StreamListener
from legato_protocol.names import EVENTS_PATH, STREAM_PATH
from legato_protocol.wire import kv_events, stream
from legato_protocol.wire.load import Load
from legato_protocol.wire.messages import BadFrame, UnknownKind
from legato_protocol.wire.stream import FromWorker, Hello, ToWorker


class _Refused(Exception):
    """The other end is not the expected worker."""


class WorkerStream:
    """The stream and events of one worker, kept open until `close`."""

    def __init__(
        self, worker: WorkerAddress, connector: Connector, listener: StreamListener, gateway: str, limits: StreamLimits
    ) -> None:
        """`gateway` is the name that this gateway shows to the worker."""
        self.worker = worker.worker
        self.address = worker.address
        self.retired = False  # dropped by discovery: a broken connection is not opened again
        self._listener = listener
        self._greeting = stream.encode(stream.Greeting(gateway, oldest=stream.OLDEST))
        self._limits = limits
        self._connector = connector
        self._connection: ClientConnection | None = None
        self._outbox: deque[bytes] = deque()
        self._outgoing = asyncio.Event()
        self._snapshot_wanted = asyncio.Event()
        self._silence = Silence(self._limits)
        self._tasks: list[asyncio.Task[None]] = []
        self._faulty: Callable[[BaseException], None]

    def start(self, faulty: Callable[[BaseException], None], over: "Callable[[WorkerStream], None]") -> None:
        """Starts to connect. `faulty` gets faults of this gateway's code. `over` is called when a retired worker's
        stream broke, and must stop it."""
        self._faulty = faulty
        self._tasks = [self._spawn(self._keep_stream(over)), self._spawn(self._keep_events())]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Creates a task. Any end other than a broken connection is a fault of this gateway's code."""

        def ended(task: asyncio.Task[None]) -> None:
            fault = None if task.cancelled() else task.exception()
            if fault is not None and not isinstance(fault, OSError | WebSocketException):
                self._faulty(fault)

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task

    def stop(self) -> None:
        """Stops all calls to the listener; `close` waits until both connections are closed."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Closes both connections."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connected(self) -> bool:
        """True once the worker has said Hello on it."""
        return self._connection is not None

    def send(self, message: ToWorker) -> bool:
        """Queues a frame, or returns False without a connection. A worker that reads nothing is disconnected."""
        if self._connection is None:
            return False
        if len(self._outbox) >= self._limits.outbox:
            self._connection.transport.abort()
            return False
        self._outbox.append(stream.encode(message))
        self._outgoing.set()
        return True

    def request_snapshot(self) -> None:
        """Requests a snapshot of the prefix cache. A new event connection starts with one anyway."""
        self._snapshot_wanted.set()

    def _backoff(self) -> Backoff:
        return Backoff(self._limits.backoff_first, self._limits.backoff_most)

    # ── /stream ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_stream(self, over: "Callable[[WorkerStream], None]") -> None:
        delays = self._backoff()
        while True:
            try:
                async with self._connector.open(STREAM_PATH) as connection:
                    await self._run_stream(connection, delays)
                    why = "the worker closed the stream"
            except (OSError, WebSocketException, _Refused, BadFrame) as error:
                why = reason(error)
                if isinstance(error, BadFrame):
                    self._listener.bad_frame(self.worker, why)
            self._listener.disconnected(self.worker, why)
            if self.retired:
                over(self)
                return
            await asyncio.sleep(delays.next())

    async def _run_stream(self, connection: ClientConnection, delays: Backoff) -> None:
        await connection.send(self._greeting)
        async with asyncio.timeout(self._limits.hello_timeout):
            hello = stream.decode_from_worker(_binary(await connection.recv()))
        self._check(hello)
        delays.reset()
        self._outbox.clear()
        self._connection = connection
        self._silence = Silence(self._limits)
        writer = self._spawn(self._write(connection))
        watch = self._spawn(self._watch(connection))
        try:
            assert isinstance(hello, Hello)
            self._listener.greeted(self.worker, hello)
            await self._read(connection)
        finally:
            self._connection = None
            for task in (writer, watch):
                task.cancel()
            await asyncio.gather(writer, watch, return_exceptions=True)

    def _check(self, hello: FromWorker) -> None:
        if not isinstance(hello, Hello):
            raise BadFrame(f"the first frame is {type(hello).__name__}, not Hello")
        if not stream.in_common(hello.version, hello.oldest):
            raise _Refused(f"it speaks version {hello.version}, this gateway {stream.VERSION}")
        if hello.worker != self.worker:
            raise _Refused(f"worker {hello.worker!r} answers at {self.address}, not {self.worker!r}")

    async def _read(self, connection: ClientConnection) -> None:
        received, greeted, worker = self._listener.received, self._listener.greeted, self.worker
        async for data in connection:
            try:
                frame = stream.decode_from_worker(_binary(data))
            except UnknownKind as error:
                self._hear(None)
                self._listener.unknown_kind(worker, str(error))
                continue
            self._hear(frame)
            if isinstance(frame, Hello):
                self._check(frame)
                greeted(worker, frame)
            elif not (isinstance(frame, Load) and frame.core_silence):
                received(worker, frame)

    def _hear(self, frame: FromWorker | None) -> None:
        if self._silence.heard(frame):
            self._listener.spoke(self.worker)

    async def _write(self, connection: ClientConnection) -> None:
        while True:
            await self._outgoing.wait()
            self._outgoing.clear()
            while self._outbox:
                await connection.send(self._outbox.popleft())

    async def _watch(self, connection: ClientConnection) -> None:
        """Reports silence, and reconnects if it lasts."""
        while True:
            await asyncio.sleep(self._limits.slice)
            for verdict in self._silence.passed():
                if verdict == "silent":
                    self._listener.silent(self.worker)
                elif verdict == "hung":
                    self._listener.hung(self.worker)
                else:
                    connection.transport.abort()
                    return

    # ── /events ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_events(self) -> None:
        delays = self._backoff()
        while True:
            try:
                async with self._connector.open(EVENTS_PATH) as connection:
                    await self._run_events(connection, delays)
            except (OSError, WebSocketException, BadFrame) as error:
                if isinstance(error, BadFrame):
                    self._listener.bad_frame(self.worker, reason(error))
            self._listener.kv_lost(self.worker)
            await asyncio.sleep(delays.next())

    async def _run_events(self, connection: ClientConnection, delays: Backoff) -> None:
        await connection.send(self._greeting)
        self._snapshot_wanted.clear()
        asking = self._spawn(self._ask_snapshots(connection))
        try:
            async for data in connection:
                delays.reset()
                try:
                    event = kv_events.decode_event(_binary(data))
                except UnknownKind as error:
                    self._listener.unknown_kind(self.worker, str(error))
                    continue
                if self._listener.kv_event(self.worker, event):
                    self._snapshot_wanted.set()
                more = True
                while more:
                    await asyncio.sleep(0)  # tokens first: a snapshot may be large, and there may be many events
                    more = self._listener.kv_read_on(self.worker)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    async def _ask_snapshots(self, connection: ClientConnection) -> None:
        while True:
            await self._snapshot_wanted.wait()
            self._snapshot_wanted.clear()
            await connection.send(stream.encode(kv_events.SnapshotRequest()))


def _binary(data: str | bytes) -> bytes:
    if isinstance(data, str):
        raise BadFrame("a text frame; frames are binary")
    return data
