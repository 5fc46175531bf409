"""Connections that never become a request: answered in OpenAI's shape, closed, and forgotten."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from openai._constants import DEFAULT_CONNECTION_LIMITS

from legato_gateway.http.protocol import MAX_HEAD_BYTES, BoundedProtocol

pytestmark = pytest.mark.anyio
START = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def names(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, then answers with the names of the headers."""
    while (await receive()).get("more_body"):
        scope["state"]["reading"].set()
    body = b" ".join(name for name, _ in scope["headers"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def connected(reading: asyncio.Event) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server that sets `reading` when it reads a body."""
    config = uvicorn.Config(names, http=BoundedProtocol, log_config=None, lifespan="off")
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BoundedProtocol(config, state, {"reading": reading}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()


async def talk(data: bytes, then: bytes = b"") -> bytes:
    """What a server answers to `data`, and `then` once it reads the body of that, until it closes the connection."""
    reading = asyncio.Event()
    async with connected(reading) as (reader, writer):
        writer.write(data)
        if then:
            await asyncio.wait_for(reading.wait(), 10)
            writer.write(then)
        return await asyncio.wait_for(reader.read(), 10)


async def test_an_idle_connection_lives_for_longer_than_clients_keep_theirs() -> None:
    """Who reuses one just when the server closes it has lost a request."""
    loop = asyncio.get_running_loop()
    clock, idle = loop.time, 0.0
    loop.time = lambda: clock() + idle  # type: ignore[method-assign]
    async with connected(asyncio.Event()) as (reader, writer):
        for patience in (DEFAULT_CONNECTION_LIMITS.keepalive_expiry, httpx.Limits().keepalive_expiry, 60.0, 600.0):
            assert patience is not None
            writer.write(START + b"content-length: 0\r\n\r\n")
            assert await asyncio.wait_for(reader.readuntil(b"content-length"), 10)
            idle += patience
            for _ in range(9):  # what is due by now happens
                await asyncio.sleep(0)
            assert not reader.at_eof()
        idle += 1000.0
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"content-length")


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (START + b"x: " + b"y" * (MAX_HEAD_BYTES + 10), 431, "headers_too_large"),
        (START + b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 10), 431, "headers_too_large"),
        (b"\x00\x01 this is no HTTP\r\n\r\n", 400, None),
    ],
)
async def test_heads_without_end_and_garbage_are_refused(data: bytes, status: int, code: str | None) -> None:
    head, _, body = (await talk(data)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


@pytest.mark.parametrize("trailers", [b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 10), b"x: " + b"y" * MAX_HEAD_BYTES])
async def test_trailers_without_end_are_refused(trailers: bytes) -> None:
    answer = await talk(CHUNKED + b"1\r\na\r\n0\r\n", trailers)
    assert answer.startswith(b"HTTP/1.1 431")
    assert b"headers_too_large" in answer


async def test_requests_on_one_connection_are_counted_each_for_itself() -> None:
    one = START + b"content-length: 3\r\nx: " + b"y" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\nabc"
    last = START + b"connection: close\r\ncontent-length: 0\r\n\r\n"
    assert (await talk(one * 4 + last)).count(b"200 OK") == 5


async def test_a_trailer_is_no_header_and_a_long_body_no_head() -> None:
    chunks = b"8000\r\n" + b"y" * 0x8000 + b"\r\n"
    last = START + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + chunks * 12
    head, _, body = (await talk(last + b"0\r\nx-legato-tenant: other\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b"host connection transfer-encoding"
