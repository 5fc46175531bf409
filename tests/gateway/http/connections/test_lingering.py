"""Requests that are answered before their body has come: their clients get that answer, and cannot go on for ever."""

import asyncio
import contextlib
import gc
import socket
import ssl
import time
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from http_server import listening
from uvicorn.server import ServerState

from legato_gateway.http.connections.limits import UNREAD_BODY, ConnectionLimits, Connections
from legato_gateway.http.connections.protocol import BoundedProtocol

pytestmark = pytest.mark.uvloop
START = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"
EMPTY = START + b"content-length: 0\r\n\r\n"
READ = b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
CHUNK = b"8000\r\n" + b"y" * 0x8000 + b"\r\n"
LONG = 1 << 20  # bytes of a long body
LIMITS = ConnectionLimits(discard_time=60.0, body_rate=100, body_window=60.0)
PATIENCE = 90.0  # seconds; longer than all limits


async def refuses(scope: Any, receive: Any, send: Any) -> None:
    """Answers without reading a body, but one at /read. At /last it closes the connection."""
    scope["state"]["asked"].append(scope["path"])
    if scope["path"] == "/read":
        while (await receive()).get("more_body"):
            pass
    said = [(b"content-length", b"7"), *((name, value) for name, value in scope["headers"] if name == b"connection")]
    said += [(b"connection", b"close")] if scope["path"] == "/last" else []
    await send({"type": "http.response.start", "status": 413, "headers": said})
    await send({"type": "http.response.body", "body": b"refused"})


@dataclass
class Service:
    """A server with a port of its own."""

    limits: ConnectionLimits
    address: tuple[str, int] = ("", 0)
    counted: Counter[str] = field(default_factory=Counter)
    passed: float = 0.0  # seconds by which connections are older than they are
    connections: Connections = field(init=False)
    state: ServerState = field(default_factory=ServerState)
    asked: list[str] = field(default_factory=list)  # paths of requests

    def __post_init__(self) -> None:
        clock = lambda: time.monotonic() + self.passed  # noqa: E731
        self.connections = Connections(self.limits, count=lambda reason: self.counted.update([reason]), clock=clock)

    async def talk(self, client: Callable[["Client"], Any], trusted: ssl.SSLContext | None = None) -> Any:
        """Runs a client in a thread and returns its result once all connections have ended."""

        def connect() -> Any:
            with socket.create_connection(self.address, timeout=PATIENCE) as own:
                return client(Client(trusted.wrap_socket(own, server_hostname="localhost") if trusted else own))

        found = await asyncio.to_thread(connect)
        await self.end()
        return found

    async def end(self) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.connections.open:  # noqa: ASYNC110 - of the other end
                await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def serving(limits: ConnectionLimits = LIMITS, **tls: Any) -> AsyncIterator[Service]:
    made = Service(limits)
    known = {"state": made.state, "app_state": {"asked": made.asked}}
    async with listening(refuses, made.connections, **known, **tls) as made.address:
        yield made


class Client:
    """A blocking one, as most are: it reads nothing before it has sent everything."""

    def __init__(self, own: socket.socket) -> None:
        self.own = own

    def ask(self, data: bytes, times: int = 1) -> bytes:
        self.own.sendall(data)
        return self.read(times)

    def read(self, times: int = 1) -> bytes:
        found = b""
        while found.count(b"refused") < times and (piece := self.own.recv(65536)):
            found += piece
        return found


@pytest.mark.parametrize("piece", [CHUNK, b"1\r\na\r\n"], ids=["fast", "slow"])
async def test_a_body_without_end_is_not_read_for_ever_and_its_client_gets_one_answer(piece):
    def client(made: Client) -> bytes:
        answer = made.ask(CHUNKED)
        made.own.settimeout(0.01)
        with contextlib.suppress(ConnectionError):
            for _ in range(round(PATIENCE / 0.01)):
                with contextlib.suppress(TimeoutError):
                    made.own.sendall(piece)
                    more = made.own.recv(65536)
                    if not more:
                        return answer
                    answer += more
        return answer

    async with serving(ConnectionLimits(discard_time=0.3, body_rate=1 << 20, body_window=0.1)) as service:
        answer = await service.talk(client)
    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.count(b"HTTP/1.1") == 1
    assert service.counted == {UNREAD_BODY: 1}


async def test_a_body_that_ends_soon_or_is_read_leaves_the_connection_for_another_request():
    def client(made: Client) -> bytes:
        answers = b""
        for _ in range(3):
            answers += made.ask(CHUNKED + CHUNK * 31)
            made.own.sendall(b"0\r\n\r\n")
        body = b"x" * (LONG + 100_000)
        for _ in range(2):
            answers += made.ask(READ % len(body) + body)
        return answers

    async with serving() as service:
        answers = await service.talk(client)
    assert answers.count(b"HTTP/1.1 413") == 5
    assert b"connection: close" not in answers
    assert not service.counted


HEADS = [
    START + b"connection: close\r\ncontent-length: 1000000\r\n\r\n",
    b"POST / HTTP/1.0\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n",
]


@pytest.mark.parametrize("head", HEADS)
async def test_a_connection_that_its_answer_closes_is_not_reset_under_a_client_that_still_sends(head):
    """It sees the end of what it is sent at once, and the server takes some of the rest."""

    def client(made: Client) -> bytes:
        answer = made.ask(head, times=2)
        for _ in range(9):
            made.own.sendall(b"x" * 100_000)
        return answer

    async with serving() as service:
        answer = await service.talk(client)
    assert answer.startswith(b"HTTP/1.1 413")
    assert answer.count(b"connection: close") == 1
    assert answer.endswith(b"refused")
    assert not service.counted


async def test_behind_the_last_answer_of_a_connection_no_request_is_read():
    """Its client would get no answer, and not know whether it was obeyed."""

    def client(made: Client) -> bytes:
        answer = made.ask(START.replace(b"/", b"/last", 1) + b"content-length: 9\r\n\r\n", times=2)
        made.own.sendall(b"x" * 9 + EMPTY)
        return answer

    async with serving() as service:
        assert (await service.talk(client)).endswith(b"refused")
    assert service.asked == ["/last"]


async def test_a_connection_that_is_over_is_freed_immediately(monkeypatch):
    """Not when cycles of references are searched for: a gateway does that seldom."""
    freed, begin = asyncio.Event(), BoundedProtocol.connection_made

    def connection_made(self: BoundedProtocol, transport: asyncio.Transport) -> None:
        weakref.finalize(self, freed.set)
        begin(self, transport)

    monkeypatch.setattr(BoundedProtocol, "connection_made", connection_made)
    gc.disable()
    try:
        async with serving() as service:
            reader, writer = await asyncio.open_connection(*service.address)
            writer.write(EMPTY)
            await reader.readuntil(b"refused")
            writer.close()
            await service.end()
            assert await asyncio.wait_for(freed.wait(), PATIENCE)
    finally:
        gc.enable()
