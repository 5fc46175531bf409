"""The two WebSockets of a gateway: a greeting first, then frames in both directions until either side closes."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.websockets import WebSocket, WebSocketDisconnect

from legato_engine.server.hub import Hub
from legato_engine.server.send_queue import SendQueue, SlowConsumer
from legato_protocol.wire import kv_events, stream
from legato_protocol.wire.kv_events import SnapshotRequest
from legato_protocol.wire.messages import BadFrame, UnknownKind
from legato_protocol.wire.stream import Greeting

STREAM_BYTES = 16 << 20  # queued for a gateway that does not read before its connection is aborted
EVENT_BYTES = 64 << 20
GREETING_SECONDS = 10.0

_PROTOCOL, _TEXT, _POLICY, _TOO_BIG = 1002, 1003, 1008, 1009


class ConnectionRejected(Exception):
    """The connection is closed with `code` and counted under `reason`."""

    def __init__(self, code: int, reason: str, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.reason = reason


class GatewayLeft(Exception):
    """The gateway closed the connection."""


class GatewayConnections:
    """Endpoints of `/stream` and `/events`."""

    def __init__(self, hub: Hub, core_writable: Callable[[], Awaitable[None]]) -> None:
        """`core_writable` waits until the core accepts more data; until then nothing is read from gateways."""
        self._hub = hub
        self._core_writable = core_writable

    async def stream(self, socket: WebSocket) -> None:
        """Requests in, tokens out."""

        async def read() -> None:
            while True:
                await self._core_writable()
                data = await _receive(socket)
                try:
                    self._hub.frame(gateway, data)
                except UnknownKind:
                    self._hub.metrics.count_refusal("unknown_kind")
                except BadFrame as error:
                    raise _bad(error) from None

        await socket.accept()
        queue = SendQueue(STREAM_BYTES)
        if await self._run(socket, self._greet(socket)):
            return
        gateway = self._hub.join(queue)
        try:
            await self._run(socket, _both(read(), queue, socket))
        finally:
            self._hub.leave(gateway)

    async def events(self, socket: WebSocket) -> None:
        """Requests for a snapshot in, KV events out."""

        async def read() -> None:
            while True:
                data = await _receive(socket)
                try:
                    request = kv_events.decode_request(data)
                except UnknownKind:
                    self._hub.metrics.count_refusal("unknown_kind")
                    continue
                except BadFrame as error:
                    raise _bad(error) from None
                if not isinstance(request, SnapshotRequest):
                    raise ConnectionRejected(_PROTOCOL, "greeting", "a second greeting")
                self._hub.send_snapshot(queue)

        await socket.accept()
        queue = SendQueue(EVENT_BYTES)
        if await self._run(socket, self._greet(socket)):
            return
        self._hub.listen(queue)
        try:
            await self._run(socket, _both(read(), queue, socket))
        finally:
            self._hub.stop_listening(queue)

    async def _greet(self, socket: WebSocket) -> None:
        try:
            async with asyncio.timeout(GREETING_SECONDS):
                data = await _receive(socket)
        except TimeoutError:
            raise ConnectionRejected(_POLICY, "greeting", "no greeting came") from None
        try:
            greeting = stream.decode_to_worker(data)
        except BadFrame as error:
            raise _bad(error) from None
        if not isinstance(greeting, Greeting):
            raise ConnectionRejected(
                _PROTOCOL, "greeting", f"the first frame is {type(greeting).__name__}, not Greeting"
            )
        if not stream.in_common(greeting.version, greeting.oldest):
            text = f"protocol version {greeting.version} is not supported; this worker speaks {stream.VERSION}"
            raise ConnectionRejected(_POLICY, "version", text)

    async def _run(self, socket: WebSocket, work: Awaitable[None]) -> bool:
        """Runs `work`. Returns True if it ended the connection."""
        try:
            await work
        except GatewayLeft:
            return True
        except ConnectionRejected as refusal:
            self._hub.metrics.count_refusal(refusal.reason)
            if refusal.code != _TOO_BIG:  # in that case it is closed already
                await socket.close(refusal.code, str(refusal)[:100])
            return True
        except SlowConsumer:
            self._hub.metrics.count_refusal("slow")
            abort: Callable[[], None] = socket.scope["state"]["abort"]
            abort()
            return True
        return False


async def _both(reading: Awaitable[None], queue: SendQueue, socket: WebSocket) -> None:
    """Reads and writes until either ends; raises its error."""
    tasks = [
        asyncio.ensure_future(reading),
        asyncio.create_task(queue.pump(socket.send_bytes)),
        asyncio.create_task(queue.wait_overflow()),
    ]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            error = task.exception()
            if isinstance(error, WebSocketDisconnect):
                raise GatewayLeft
            if error:
                raise error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _receive(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        if message.get("code") == _TOO_BIG:
            raise ConnectionRejected(_TOO_BIG, "oversized", "a frame above the limit")
        raise GatewayLeft
    data: bytes | None = message.get("bytes")
    if data is None:
        raise ConnectionRejected(_TEXT, "text", "a text frame; frames are binary")
    return data


def _bad(error: BadFrame) -> ConnectionRejected:
    return ConnectionRejected(_PROTOCOL, "malformed", str(error))
