"""A client that has said all it has to say gets its answer; one that is gone ends its request at once."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from http_server import listening

pytestmark = pytest.mark.uvloop
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass
class Application:
    """Answers when it is let, unless the client is gone before."""

    begins: bool = False  # a streamed answer, whose head is sent at once
    running: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    heard: asyncio.Queue[str] = field(default_factory=asyncio.Queue)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        if self.begins:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        self.running.set()
        run = asyncio.create_task(self._answer(send))
        while (message := await receive())["type"] != "http.disconnect":
            self.heard.put_nowait(message["type"])
            await send({"type": "http.response.body", "body": b"probe ", "more_body": True})
        if not run.done():
            self.heard.put_nowait("gone")
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)

    async def _answer(self, send: Any) -> None:
        await self.answers.wait()
        if not self.begins:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"6")]})
        await send({"type": "http.response.body", "body": b"answer"})


@contextlib.asynccontextmanager
async def client(app: Application, sent: bytes = GET) -> AsyncIterator[socket.socket]:
    """A connected socket that has sent this; where it is a whole request, the application runs."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(20), listening(app) as address:
        with socket.socket() as own:
            own.setblocking(False)
            await loop.sock_connect(own, address)
            await loop.sock_sendall(own, sent)
            if sent.startswith(b"GET") and sent.endswith(b"\r\n\r\n"):
                await app.running.wait()
            yield own


async def read(own: socket.socket, most: int = 1 << 20) -> bytes:
    """Reads so many bytes, or all."""
    loop, found = asyncio.get_running_loop(), b""
    while len(found) < most and (piece := await loop.sock_recv(own, most - len(found))):
        found += piece
    return found


def half_close(own: socket.socket) -> None:
    own.shutdown(socket.SHUT_WR)


def reset(own: socket.socket) -> None:
    own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def test_it_gets_its_answer_and_the_connection_is_closed():
    app = Application()
    async with client(app) as own:
        half_close(own)
        assert await read(own, len(CONTINUE)) == CONTINUE
        app.answers.set()
        answer = (await read(own)).replace(CONTINUE, b"")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"connection: close\r\n" in answer
    assert answer.endswith(b"\r\n\r\nanswer")


async def test_a_stream_that_has_begun_is_asked_to_say_something_and_goes_on():
    app = Application(begins=True)
    async with client(app) as own:
        half_close(own)
        assert await app.heard.get() == "http.request"
        app.answers.set()
        answer = await read(own)
    assert b"answer\r\n0\r\n\r\n" in answer
    assert CONTINUE not in answer


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("before", [lambda own: None, half_close, reset])
async def test_a_client_that_leaves_is_noticed(begins, before):
    app = Application(begins=begins)
    async with client(app) as own:
        before(own)
        own.close()
        while await app.heard.get() != "gone":
            pass


@pytest.mark.parametrize("sent", [b"", GET[:-2], POST, POST + b"12345"])
async def test_without_a_whole_request_it_is_gone(sent):
    app = Application()
    async with client(app, sent) as own:
        half_close(own)
        assert CONTINUE not in await read(own)
    assert not app.running.is_set()


async def test_an_old_client_may_be_sent_no_interim_answer_so_it_counts_as_gone():
    app = Application()
    async with client(app, GET.replace(b"HTTP/1.1", b"HTTP/1.0")) as own:
        half_close(own)
        assert await read(own) == b""
        assert await app.heard.get() == "gone"
