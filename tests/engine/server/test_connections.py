"""Reading from gateways, and its backpressure."""

import asyncio
import socket

import pytest

from legato_engine.metrics import WorkerMetrics
from legato_engine.server import core_link
from legato_engine.server.connections import GatewayConnections
from legato_engine.server.hub import Hub
from legato_protocol.wire import stream
from legato_protocol.wire.stream import Cancel, Greeting


class Gateway:
    """In place of a WebSocket: its frames, and how many were read."""

    def __init__(self, *frames):
        self.frames = [stream.encode(frame) for frame in frames]
        self.read = 0

    async def accept(self): ...

    async def send_bytes(self, data): ...

    async def receive(self):
        await asyncio.sleep(0)
        if self.read == len(self.frames):
            return {"type": "websocket.disconnect"}
        self.read += 1
        return {"type": "websocket.receive", "bytes": self.frames[self.read - 1]}


async def test_nothing_is_read_from_gateways_while_the_core_does_not_read():
    writable = asyncio.Event()
    gateway = Gateway(Greeting("g"), *(Cancel(f"r{n}", 1) for n in range(5)))
    connections = GatewayConnections(Hub(WorkerMetrics(), lambda: None), lambda: writable.wait())
    serving = asyncio.create_task(connections.stream(gateway))  # type: ignore[arg-type]
    for _ in range(50):
        await asyncio.sleep(0)
    assert gateway.read == 1
    writable.set()
    await serving
    assert gateway.read == 6


@pytest.mark.parametrize("reads", [True, False])
async def test_a_core_is_writable_again_when_it_has_read_or_is_gone(reads):
    ours, theirs = socket.socketpair()
    link = await core_link.connect(ours)
    link._writer.write(bytes(8 << 20))
    waiting = asyncio.create_task(link.wait_writable())
    for _ in range(50):
        await asyncio.sleep(0)
    assert not waiting.done()
    theirs.setblocking(False)
    while reads and not waiting.done():
        await asyncio.get_running_loop().sock_recv(theirs, 1 << 20)
    theirs.close()
    await waiting
    await link.end()
