"""Connections that never become a request: answered in OpenAI's shape, closed, and forgotten."""

import asyncio
import json
from typing import Any

import pytest
import uvicorn

from legato_gateway.http_protocol import MAX_HEAD_BYTES, BoundedProtocol

pytestmark = pytest.mark.anyio
START = b"POST / HTTP/1.1\r\nhost: x\r\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


async def talk(data: bytes) -> bytes:
    """What a server answers to `data` until it closes the connection."""
    config = uvicorn.Config(hello, http=BoundedProtocol, log_config=None, lifespan="off")
    config.load()
    state = uvicorn.server.ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: BoundedProtocol(config, state, {}), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    answer = b""
    try:
        writer.write(data)
        answer = await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
        server.close()
    return answer


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


async def test_requests_on_one_connection_are_counted_each_for_itself() -> None:
    one = START + b"content-length: 3\r\nx: " + b"y" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\nabc"
    last = START + b"connection: close\r\ncontent-length: 0\r\n\r\n"
    assert (await talk(one * 4 + last)).count(b"200 OK") == 5
