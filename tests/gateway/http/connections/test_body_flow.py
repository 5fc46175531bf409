"""Large bodies are read when the application wants more of them, and their clients are given time only meanwhile."""

import asyncio
import json
from collections import Counter
from functools import partial
from typing import Any

import pytest
import uvicorn
from http_server import Passing

from legato_gateway.errors import LateRequest
from legato_gateway.http.app import error_response
from legato_gateway.http.connections import protocol
from legato_gateway.http.connections.body_rate import BodyRate
from legato_gateway.http.connections.limits import SLOW_BODY, ConnectionLimits, Connections
from legato_gateway.http.connections.protocol import BoundedProtocol

HEAD = b"POST / HTTP/1.1\r\nhost: x\r\n"
LARGE = 1 << 20
LIMITS = ConnectionLimits(body_rate=100, body_window=30.0)
PIECE = b"x" * 20_000


class Sent:
    """The client's side, as the protocol sees it."""

    def __init__(self) -> None:
        self.reading, self.closing = True, False
        self.answer = b""
        self.pause_reading, self.resume_reading = (partial(setattr, self, "reading", on) for on in (False, True))
        self.close, self.is_closing = partial(setattr, self, "closing", True), lambda: self.closing
        self.get_extra_info = {"sockname": ("127.0.0.1", 80)}.get
        self.get_write_buffer_size = lambda: 0

    def write(self, data: bytes) -> None:
        self.answer += data


class Application:
    """Takes a piece whenever it is told to."""

    def __init__(self) -> None:
        self.wanted: asyncio.Queue[bool] = asyncio.Queue()
        self.taken = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            while await self.wanted.get():
                self.taken += len((await receive()).get("body", b""))
        except LateRequest as error:
            await error_response(error, scope)(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


class Server:
    """One connection, at a time that is set forward."""

    def __init__(self) -> None:
        self.by = Passing().by
        self.app, self.counted = Application(), Counter[str]()
        owner = Connections(LIMITS, count=lambda reason: self.counted.update([reason]))
        config = uvicorn.Config(
            BodyRate(self.app, owner), http=protocol.factory(owner), log_config=None, lifespan="off"
        )
        config.load()
        self.client: Any = Sent()
        self.protocol = BoundedProtocol(owner, config, uvicorn.server.ServerState(), {})
        self.protocol.connection_made(self.client)

    async def send(self, data: bytes) -> None:
        assert self.client.reading
        self.protocol.data_received(data)
        await settled()

    async def want(self, more: bool = True) -> None:
        self.app.wanted.put_nowait(more)
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
async def server() -> Any:
    made = Server()
    yield made
    made.protocol.connection_lost(None)


def announced(size: int) -> bytes:
    return HEAD + b"content-length: %d\r\n\r\n" % size


async def test_of_a_large_body_no_more_is_read_than_is_asked_for(server):
    await server.send(announced(LARGE) + PIECE)
    assert not server.client.reading
    await server.want()
    assert (server.app.taken, server.client.reading) == (len(PIECE), False)  # of that piece, nothing had to be read
    for number in (2, 3):
        await server.want()
        await server.send(PIECE)
        assert (server.app.taken, server.client.reading) == (number * len(PIECE), False)


async def test_a_body_of_unknown_size_is_one_once_64_kib_of_it_have_come(server):
    chunk = b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
    await server.send(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunk)
    for _ in range(3):
        await server.want()
        await server.send(chunk)
    assert not server.client.reading


async def test_a_small_body_is_read_in_one_go(server):
    await server.send(announced(60_000) + PIECE)
    for _ in range(2):
        await server.send(PIECE)
    await server.want()
    await server.want(False)
    assert (server.client.answer[:12], server.client.reading) == (b"HTTP/1.1 200", True)


async def test_after_an_answer_the_rest_of_a_body_is_read(server):
    await server.send(announced(10 * len(PIECE)) + PIECE)
    await server.want(False)
    assert server.client.answer.startswith(b"HTTP/1.1 200")
    for _ in range(9):
        await server.send(PIECE)
    await server.send(announced(0))
    await server.want(False)
    assert server.client.answer.count(b"HTTP/1.1 200") == 2


async def test_a_client_that_is_held_back_is_given_time(server):
    await server.send(announced(LARGE) + PIECE * 4)
    for _ in range(5):
        await server.by(LIMITS.body_window)
    await server.by(LIMITS.body_window - 1)
    await server.want()
    await server.want()
    await server.by(1)
    assert not server.client.closing  # it was let send for a second
    await server.send(PIECE)
    await server.by(10 * LIMITS.body_window)
    assert not server.client.closing


@pytest.mark.parametrize("held_back", [0.0, 100.0])
async def test_a_client_that_sends_slowly_when_it_is_let_send_is_not(server, held_back):
    await server.send(announced(LARGE) + PIECE * 4)
    await server.by(LIMITS.body_window)
    await server.want()
    for _ in range(80):
        await server.want()
        await server.by(1)
        if server.client.closing:
            break
        await server.send(b"x")
        await server.by(held_back)
    assert server.counted == {SLOW_BODY: 1}
    assert server.client.answer.startswith(b"HTTP/1.1 408")
    assert b"connection: close" in server.client.answer
    assert json.loads(server.client.answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
