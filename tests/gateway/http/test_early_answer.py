"""What a connection answers by itself can be read by the pages that may read all other answers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from http_server import Passing, listening
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from legato_gateway.http import cors
from legato_gateway.http.connections import Connections
from legato_gateway.http.protocol import MAX_HEAD_BYTES

PAGE = b"https://chat.example.com"
OTHER = b"https://evil.example.com"
START = b"POST / HTTP/1.1\r\nhost: x\r\n"
PATIENCE = 31.0  # seconds: longer than the gateway's, with heads and bodies
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
EARLY = [  # what is sent behind the header `origin`, and what is answered
    (400, CHUNKED + b"zz\r\n"),
    (400, b"x: y\r\n\x00: y\r\n\r\n"),
    (408, b"content-length: 100\r\n\r\nx"),
    (408, b"x-more"),
    (431, b"x: " + b"y" * (MAX_HEAD_BYTES + 10)),
]


@contextlib.asynccontextmanager
async def serving(origins: tuple[str, ...], public: int | None = None) -> AsyncIterator[Any]:
    """A function that sends something to a server and returns the status and the headers of its last answer."""
    app = Starlette(routes=[Route("/", read, methods=["POST"])])
    if origins:
        cors.allow(app, origins)
    passing = Passing()

    async def talk(data: bytes, late: bool = False) -> tuple[int, dict[str, str]]:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(data)
            await writer.drain()
            if late:
                for _ in range(100):  # until it is read
                    await asyncio.sleep(0)
                await passing.by(PATIENCE)
            *_, last = (await asyncio.wait_for(reader.read(), 20)).split(b"HTTP/1.1 ")
        finally:
            writer.close()
        status, *lines = last.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        return int(status[:3]), dict(line.split(": ", 1) for line in lines)

    async with listening(app, Connections(public=public), origins) as address:
        yield talk


async def read(request: Any) -> Response:
    return Response(await request.body())


def of_cors(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize("origins", [("http://localhost:3000", PAGE.decode()), ("*",)])
async def test_pages_may_read_what_a_connection_answers(origins):
    """With the headers that the application's answers have."""
    sent = START + b"origin: " + PAGE + b"\r\n"
    async with serving(origins) as talk:
        status, headers = await talk(sent + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        usual = of_cors(headers)
        assert status == 200
        assert usual["access-control-allow-origin"] in ("*", PAGE.decode())
        for expected, rest in EARLY:
            status, headers = await talk(sent + rest, expected == 408)
            assert (status, of_cors(headers)) == (expected, usual), rest[:40]


@pytest.mark.parametrize(
    ("origins", "origin"), [((PAGE.decode(),), OTHER), ((PAGE.decode(),), b"null"), ((PAGE.decode(),), b""), ((), PAGE)]
)
async def test_other_pages_may_not(origins, origin):
    async with serving(origins) as talk:
        for expected, rest in EARLY:
            status, headers = await talk(START + b"origin: " + origin + b"\r\n" + rest, expected == 408)
            assert (status, of_cors(headers)) == (expected, {}), rest[:40]


async def test_an_origin_is_of_one_request_alone():
    """And it needs to be read: a proxy may send requests of several pages over one connection."""
    whole = START + b"origin: " + PAGE + b"\r\ncontent-length: 0\r\n\r\n"
    async with serving((PAGE.decode(),)) as talk:
        for expected, rest in [(400, b"\x00\x01 no HTTP"), (408, b"POST / HTTP/1.1\r\norigin: "), (408, START)]:
            for before in (b"", whole):
                status, headers = await talk(before + rest, expected == 408)
                assert (status, of_cors(headers)) == (expected, {}), rest
        status, headers = await talk(b"\r\n" * (MAX_HEAD_BYTES // 2 + 1))  # of which no request has come
        assert (status, of_cors(headers)) == (431, {})


async def test_ports_of_the_gateways_own_take_no_part_in_it():
    async with serving(("*",), public=1) as talk:
        status, headers = await talk(START + b"origin: " + PAGE + b"\r\n" + EARLY[0][1])
        assert (status, of_cors(headers)) == (400, {})
