"""The two WebSockets of one worker: connecting, greeting, sending, reading, noticing silence, connecting again.

Frames are decoded here once and handed to a `StreamListener`; what they mean is not decided here.
"""

import asyncio
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException

from legato_gateway.workers.silence import Silence, SilenceLimits
from legato_protocol import kv_events, stream
from legato_protocol.followed_tokens import ServiceTokens, ShownToken
from legato_protocol.kv_events import KVEvent
from legato_protocol.load import Load
from legato_protocol.messages import MAX_FRAME_BYTES, BadFrame, UnknownKind
from legato_protocol.names import EVENTS_PATH, STREAM_PATH
from legato_protocol.stream import FromWorker, Hello, ToWorker
from legato_protocol.tls_files import InternalTLS

_REFUSED = (401, 403)  # status of an answer to a token that is not taken


class StreamListener(Protocol):
    """Who wants to know. All calls are synchronous and must not block."""

    def greeted(self, worker: str, hello: Hello) -> None:
        """The worker said who it is: after connecting, and again with a new epoch."""

    def received(self, worker: str, frame: FromWorker) -> None:
        """Any other frame."""

    def silent(self, worker: str) -> None:
        """Its core said nothing for `SilenceLimits.silence` seconds: it may hang, or go on."""

    def hung(self, worker: str) -> None:
        """Nothing at all came for `SilenceLimits.hang` seconds, and longer where its steps take long."""

    def spoke(self, worker: str) -> None:
        """The first word of its core after `silent`; the frame itself follows."""

    def disconnected(self, worker: str, reason: str) -> None:
        """The stream broke or could not be opened. Reconnecting goes on by itself."""

    def kv_event(self, worker: str, event: KVEvent) -> bool:
        """An event of its prefix cache. True asks the worker for a new snapshot."""

    def kv_read_on(self, worker: str) -> bool:
        """Does more of the work that its last event makes. False: there was none left."""

    def kv_lost(self, worker: str) -> None:
        """The event connection broke: what it told before is worth nothing now."""

    def removed(self, worker: str) -> None:
        """It is listed no more and nothing connects this gateway to it."""

    def bad_frame(self, worker: str, reason: str) -> None:
        """It sent something that is no frame; its connection was closed for that."""

    def unknown_kind(self, worker: str, reason: str) -> None:
        """It is of a later version, and sent a frame that this one skips."""

    def refused(self, worker: str, path: str) -> None:
        """It refused the token that was shown to it; another one is tried, if there is one."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Times in seconds, sizes in frames."""

    silence: SilenceLimits = field(default_factory=SilenceLimits)
    open_timeout: float = 5.0
    hello_timeout: float = 60.0  # a worker that still loads its model says Hello when it is ready
    backoff_first: float = 0.05
    backoff_most: float = 2.0
    outbox: int = 10_000


class _Refused(Exception):
    """The other end is not the worker that was expected there."""


class WorkerStream:
    """Stream and events of one worker, kept open until `close`."""

    def __init__(
        self,
        worker: str,
        address: str,
        listener: StreamListener,
        *,
        gateway: str,
        tokens: ServiceTokens,
        limits: StreamLimits | None = None,
        random_source: random.Random | None = None,
        secured: bool = False,
        tls: InternalTLS | None = None,
    ) -> None:
        """Where it is `secured`, the worker has to show a certificate of the authority of `tls` for its name; without
        `tls`, one that this machine trusts for the address."""
        self.worker = worker
        self.address = address
        self.retired = False  # listed no more: a connection that breaks is not opened again
        self._listener = listener
        self._greeting = stream.encode(stream.Greeting(gateway, oldest=stream.OLDEST))
        self._token = ShownToken(tokens)
        self._scheme, self._tls = "wss" if secured else "ws", tls
        self._limits = limits or StreamLimits()
        self._random = random_source or random.Random()
        self._connection: ClientConnection | None = None
        self._outbox: deque[bytes] = deque()
        self._outgoing = asyncio.Event()
        self._snapshot_wanted = asyncio.Event()
        self._silence = Silence(self._limits.silence)
        self._tasks: list[asyncio.Task[None]] = []
        self._faulty: Callable[[BaseException], None]

    def start(self, faulty: Callable[[BaseException], None], over: "Callable[[WorkerStream], None]") -> None:
        """Begin to connect. `faulty` is told of a fault of ours; `over`, when the stream of a retired worker broke: it
        is to be stopped."""
        self._faulty = faulty
        self._tasks = [self._spawn(self._keep_stream(over)), self._spawn(self._keep_events())]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task whose end by anything but a broken connection is a fault of ours."""

        def ended(task: asyncio.Task[None]) -> None:
            fault = None if task.cancelled() else task.exception()
            if fault is not None and not isinstance(fault, OSError | WebSocketException):
                self._faulty(fault)

        task = asyncio.create_task(work)
        task.add_done_callback(ended)
        return task

    def stop(self) -> None:
        """From here on the listener hears nothing more; `close` waits until both connections are closed."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Close both connections."""
        self.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def connected(self) -> bool:
        """The worker has said Hello on it."""
        return self._connection is not None

    def send(self, message: ToWorker) -> bool:
        """Queue a frame. False when there is no connection; a worker that reads nothing is cut off."""
        if self._connection is None:
            return False
        if len(self._outbox) >= self._limits.outbox:
            self._connection.transport.abort()
            return False
        self._outbox.append(stream.encode(message))
        self._outgoing.set()
        return True

    def request_snapshot(self) -> None:
        """Ask for a snapshot of the prefix cache. Without an event connection nothing is lost: one begins with it."""
        self._snapshot_wanted.set()

    # ── /stream ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _keep_stream(self, over: "Callable[[WorkerStream], None]") -> None:
        delays = _Backoff(self._limits, self._random)
        while True:
            try:
                async with self._connected(STREAM_PATH) as connection:
                    await self._run_stream(connection, delays)
                    reason = "the worker closed the stream"
            except (OSError, WebSocketException, _Refused, BadFrame) as error:
                reason = _reason(error)
                if isinstance(error, BadFrame):
                    self._listener.bad_frame(self.worker, reason)
            self._listener.disconnected(self.worker, reason)
            if self.retired:
                over(self)
                return
            await delays.wait()

    async def _run_stream(self, connection: ClientConnection, delays: "_Backoff") -> None:
        await connection.send(self._greeting)
        async with asyncio.timeout(self._limits.hello_timeout):
            hello = stream.decode_from_worker(_binary(await connection.recv()))
        self._check(hello)
        delays.reset()
        self._outbox.clear()
        self._connection = connection
        self._silence = Silence(self._limits.silence)
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
        """Tell of silence once it is long enough, and start over with a connection that stays silent."""
        while True:
            await asyncio.sleep(self._limits.silence.slice)
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
        delays = _Backoff(self._limits, self._random)
        while True:
            try:
                async with self._connected(EVENTS_PATH) as connection:
                    await self._run_events(connection, delays)
            except (OSError, WebSocketException, BadFrame) as error:
                if isinstance(error, BadFrame):
                    self._listener.bad_frame(self.worker, _reason(error))
            self._listener.kv_lost(self.worker)
            await delays.wait()

    async def _run_events(self, connection: ClientConnection, delays: "_Backoff") -> None:
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

    @asynccontextmanager
    async def _connected(self, path: str) -> AsyncIterator[ClientConnection]:
        """A connection to there. A token that is refused is not shown again before the others were."""
        token = self._token.get()
        try:
            async with self._connect(path, token) as connection:
                self._token.taken()
                yield connection
        except InvalidStatus as error:
            if error.response.status_code in _REFUSED:
                self._token.refused(token)
                self._listener.refused(self.worker, path)
            raise

    def _connect(self, path: str, token: str) -> connect:
        tls = self._tls
        trusted: dict[str, Any] = {"ssl": tls.value.client, "server_hostname": tls.name} if tls is not None else {}
        return connect(
            f"{self._scheme}://{self.address}{path}",
            **trusted,  # of now: another connection may be made with other files
            additional_headers={"Authorization": f"Bearer {token}"},
            compression=None,
            proxy=None,
            open_timeout=self._limits.open_timeout,
            ping_interval=None,  # Load is the heartbeat
            close_timeout=1,
            max_size=MAX_FRAME_BYTES,
        )


class _Backoff:
    """Growing pauses between attempts, with jitter so that gateways do not knock all at once."""

    def __init__(self, limits: StreamLimits, source: random.Random) -> None:
        self._limits = limits
        self._random = source
        self.reset()

    def reset(self) -> None:
        self._next = self._limits.backoff_first

    async def wait(self) -> None:
        delay = self._next * (0.5 + self._random.random())
        self._next = min(self._next * 2, self._limits.backoff_most)
        await asyncio.sleep(delay)


def _binary(data: str | bytes) -> bytes:
    if isinstance(data, str):
        raise BadFrame("a text frame; frames are binary")
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, InvalidStatus) and error.response.status_code in _REFUSED:
        return "it refuses this gateway's token"
    if isinstance(error, InvalidHandshake):
        return f"no WebSocket there: {error}"
    return str(error) or type(error).__name__
