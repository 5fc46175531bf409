"""Connections that never become a request: answered in OpenAI's shape, closed, and forgotten."""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from http_server import Passing, listening
from openai._constants import DEFAULT_CONNECTION_LIMITS

from legato_gateway.http import protocol
from legato_gateway.http.connections import LATE_HEAD, SLOW_BODY, ConnectionLimits, Connections
from legato_gateway.http.protocol import MAX_HEAD_BYTES

START = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"


async def names(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, then answers with the names of the headers."""
    while (await receive()).get("more_body"):
        scope["state"]["reading"].set()
    body = b" ".join(name for name, _ in scope["headers"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def connected(
    reading: asyncio.Event, places: Connections | None = None, app: Any = names
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server that sets `reading` when it reads a body."""
    async with listening(app, places, app_state={"reading": reading}) as address:
        reader, writer = await asyncio.open_connection(*address)
        try:
            yield reader, writer
        finally:
            writer.close()


async def talk(data: bytes, then: bytes = b"") -> bytes:
    """What a server answers to `data`, and `then` once it reads the body of that, until it closes the connection."""
    reading = asyncio.Event()
    async with connected(reading) as (reader, writer):
        writer.write(data)
        if then:
            await asyncio.wait_for(reading.wait(), 10)
            writer.write(then)
        return await asyncio.wait_for(reader.read(), 10)


async def test_an_idle_connection_lives_for_longer_than_clients_keep_theirs():
    """Who reuses one just when the server closes it has lost a request."""
    passing = Passing()
    async with connected(asyncio.Event()) as (reader, writer):
        for patience in (DEFAULT_CONNECTION_LIMITS.keepalive_expiry, httpx.Limits().keepalive_expiry, 60.0, 600.0):
            assert patience is not None
            writer.write(START + b"content-length: 0\r\n\r\n")
            assert await asyncio.wait_for(reader.readuntil(b"content-length"), 10)
            await passing.by(patience)
            assert not reader.at_eof()
        await passing.by(1000.0)
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"content-length")


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (START + b"x: " + b"y" * (MAX_HEAD_BYTES + 10), 431, "headers_too_large"),
        (START + b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 10), 431, "headers_too_large"),
        (b"\x00\x01 this is no HTTP\r\n\r\n", 400, None),
    ],
)
async def test_heads_without_end_and_garbage_are_refused(data, status, code):
    head, _, body = (await talk(data)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status)
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", code)


@pytest.mark.parametrize("trailers", [b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 10), b"x: " + b"y" * MAX_HEAD_BYTES])
async def test_trailers_without_end_are_refused(trailers):
    answer = await talk(CHUNKED + b"1\r\na\r\n0\r\n", trailers)
    assert answer.startswith(b"HTTP/1.1 431")
    assert b"headers_too_large" in answer


async def test_requests_on_one_connection_are_counted_each_for_itself():
    one = START + b"content-length: 3\r\nx: " + b"y" * (MAX_HEAD_BYTES // 2) + b"\r\n\r\nabc"
    last = START + b"connection: close\r\ncontent-length: 0\r\n\r\n"
    assert (await talk(one * 4 + last)).count(b"200 OK") == 5


async def test_a_trailer_is_no_header_and_a_long_body_no_head():
    chunks = b"8000\r\n" + b"y" * 0x8000 + b"\r\n"
    last = START + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + chunks * 12
    head, _, body = (await talk(last + b"0\r\nx-legato-tenant: other\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b"host connection transfer-encoding"


async def arrived(connection: Any) -> None:
    """Until the server has read what was sent to it."""
    await connection[1].drain()
    for _ in range(100):
        await asyncio.sleep(0)


LIMITS = ConnectionLimits(head=30.0, body_rate=100, body_window=30.0, idle=620.0)


@pytest.mark.parametrize("sent", [b"", b"\r\n", b"POST / HTTP/1.1\r\nhost"])
async def test_a_head_that_does_not_come_in_time_ends_the_connection(sent):
    passing, counted = Passing(), Counter[str]()
    places = Connections(LIMITS, count=lambda reason: counted.update([reason]))
    async with connected(asyncio.Event(), places) as connection:
        connection[1].write(sent)
        await arrived(connection)
        await passing.by(LIMITS.head - 1)
        assert not connection[0].at_eof()
        connection[1].write(b"o" if sent.startswith(b"POST") else b"")  # a byte now and then does not help
        await arrived(connection)
        await passing.by(1)
        answer = await asyncio.wait_for(connection[0].read(), 10)
        assert answer.startswith(b"HTTP/1.1 408") if sent.startswith(b"POST") else answer == b""
        assert counted == {LATE_HEAD: 1}
    assert places.open == 0


@pytest.mark.parametrize("head", [START + b"content-length: 9999999\r\n\r\n", CHUNKED])
async def test_a_body_has_to_keep_up_a_rate_whatever_was_sent_before(head):
    passing, counted, reading = Passing(), Counter[str](), asyncio.Event()
    places = Connections(LIMITS, count=lambda reason: counted.update([reason]))
    enough = b"bb8\r\n" + b"x" * 3000 + b"\r\n"
    async with connected(reading, places) as connection:
        connection[1].write(head + enough * 5)
        await asyncio.wait_for(reading.wait(), 10)
        await passing.by(LIMITS.body_window)
        connection[1].write(enough)
        await arrived(connection)
        await passing.by(LIMITS.body_window)
        assert not connection[0].at_eof()
        connection[1].write(enough[:100])
        await arrived(connection)
        await passing.by(LIMITS.body_window)
        answer = await asyncio.wait_for(connection[0].read(), 10)
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"
        assert counted == {SLOW_BODY: 1}


async def test_an_answer_that_takes_long_is_not_ended_by_what_is_sent_behind_its_request():
    passing, go_on, begun = Passing(), asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await go_on.wait()
        await names(scope, receive, send)

    async with connected(asyncio.Event(), Connections(LIMITS), slow) as connection:
        connection[1].write(START + b"content-length: 0\r\n\r\n\r\nPOST")
        await asyncio.wait_for(begun.wait(), 10)
        await arrived(connection)
        await passing.by(10 * LIMITS.head)
        go_on.set()
        assert (await asyncio.wait_for(connection[0].readuntil(b"content-length"), 10)).startswith(b"HTTP/1.1 200")
        await passing.by(LIMITS.head)
        assert b"408" in await asyncio.wait_for(connection[0].read(), 10)


async def test_without_a_place_the_answer_is_503_and_says_when_to_come_back():
    places = Connections(ConnectionLimits(most=0))
    async with connected(asyncio.Event(), places) as (reader, _):
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: " in head
    assert b"x-legato-drop-reason: connections_full" in head
    assert json.loads(body)["error"]["code"] == "overloaded"
    assert places.open == 0


async def test_an_idle_connection_makes_room_and_one_with_a_request_does_not():
    passing, go_on, begun = Passing(), asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    places = Connections(ConnectionLimits(most=1), clock=lambda: loop.time())

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await go_on.wait()
        await names(scope, receive, send)

    async with connected(asyncio.Event(), places, slow) as (reader, writer):
        writer.write(START + b"content-length: 0\r\n\r\n")
        await asyncio.wait_for(begun.wait(), 10)
        await passing.by(2)
        server = writer.get_extra_info("peername")
        refused, _ = await asyncio.open_connection(*server)
        assert (await asyncio.wait_for(refused.read(), 10)).startswith(b"HTTP/1.1 503")
        go_on.set()
        await asyncio.wait_for(reader.readuntil(b"content-length"), 10)
        await passing.by(2)
        new, sending = await asyncio.open_connection(*server)
        assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"content-length")
        sending.write(START + b"content-length: 0\r\n\r\n")
        assert (await asyncio.wait_for(new.readuntil(b"content-length"), 10)).startswith(b"HTTP/1.1 200")
        sending.close()


async def test_a_connection_whose_body_was_refused_is_idle_once_that_has_come():
    """Or else nothing would ever end it."""
    passing, answered, places = Passing(), asyncio.Event(), Connections(LIMITS)

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})
        answered.set()

    async with connected(asyncio.Event(), places, refuses) as connection:
        connection[1].write(START + b"content-length: 4\r\n\r\nab")
        await asyncio.wait_for(answered.wait(), 10)
        connection[1].write(b"cd")
        await arrived(connection)
        await passing.by(LIMITS.idle - 1)
        assert places.open == 1
        await passing.by(1)
        assert b"413" in await asyncio.wait_for(connection[0].read(), 10)


async def test_a_client_that_reads_nothing_cannot_keep_a_connection_that_is_closed():
    passing, places, answered = Passing(), Connections(LIMITS), asyncio.Event()

    async def says_much(scope: Any, receive: Any, send: Any) -> None:
        body = b"x" * (32 << 20)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})
        answered.set()

    async with connected(asyncio.Event(), places, says_much) as connection:
        connection[1].transport.pause_reading()
        connection[1].write(START + b"content-length: 0\r\n\r\n")
        await asyncio.wait_for(answered.wait(), 10)
        await passing.by(LIMITS.idle)
        assert places.open == 1
        await passing.by(protocol.LAST_FLUSH)
        assert places.open == 0
