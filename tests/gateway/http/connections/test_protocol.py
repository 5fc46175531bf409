"""Connections that never become a request: answered in OpenAI's shape, closed, and forgotten."""

import ast
import asyncio
import contextlib
import inspect
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
import uvicorn
from http_server import Passing, listening
from openai._constants import DEFAULT_CONNECTION_LIMITS
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from legato_gateway.http.connections import protocol
from legato_gateway.http.connections.limits import LATE_HEAD, PIPELINED, ConnectionLimits, Connections
from legato_gateway.http.connections.protocol import MAX_HEAD_BYTES, BoundedProtocol

START = b"POST / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = START + b"transfer-encoding: chunked\r\n\r\n"
EMPTY = START + b"content-length: 0\r\n\r\n"
LIMITS = ConnectionLimits(head=30.0, body_rate=100, body_window=30.0, idle=620.0)


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
    """Returns the answers to `data`, and to `then` once the server reads the body, until it closes the connection."""
    reading = asyncio.Event()
    async with connected(reading) as (reader, writer):
        writer.write(data)
        if then:
            await asyncio.wait_for(reading.wait(), 60)
            writer.write(then)
        return await asyncio.wait_for(reader.read(), 60)


class Slow:
    """An application that answers once it may."""

    def __init__(self) -> None:
        self.go_on, self.begun = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.begun.set()
        await self.go_on.wait()
        await names(scope, receive, send)


def counting() -> tuple[Connections, Counter[str]]:
    counted = Counter[str]()
    return Connections(LIMITS, count=lambda reason: counted.update([reason])), counted


async def test_an_idle_connection_lives_for_longer_than_clients_keep_theirs():
    """A client that reuses one just when the server closes it has lost a request."""
    passing = Passing()
    async with connected(asyncio.Event()) as (reader, writer):
        for patience in (DEFAULT_CONNECTION_LIMITS.keepalive_expiry, httpx.Limits().keepalive_expiry, 60.0, 600.0):
            writer.write(EMPTY)
            assert await asyncio.wait_for(reader.readuntil(b"content-length"), 60)
            await passing.by(patience)
            assert not reader.at_eof()
        await passing.by(1000.0)
        assert (await asyncio.wait_for(reader.read(), 60)).endswith(b"content-length")


@pytest.mark.parametrize("lines", [b"x: " + b"y" * (MAX_HEAD_BYTES + 10), b"x: y\r\n" * (MAX_HEAD_BYTES // 6 + 10)])
async def test_heads_and_trailers_without_end_are_refused(lines):
    for data, then in ((START + lines, b""), (CHUNKED + b"1\r\na\r\n0\r\n", lines)):
        head, _, body = (await talk(data, then)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431")
        assert json.loads(body)["error"]["code"] == "headers_too_large"


async def test_garbage_is_refused():
    head, _, body = (await talk(b"\x00\x01 this is no HTTP\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", None)


JAVA = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAM\r\n"
OFFERS = {
    "Java's client": JAVA + b"content-length: 3\r\n\r\nabc",
    "chunks": JAVA + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "no body": JAVA + b"\r\n",
    "WebSocket": b"connection: upgrade\r\nupgrade: websocket\r\ncontent-length: 3\r\n\r\nabc",
    "TLS": b"connection: upgrade\r\nupgrade: TLS/1.0, HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
}


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_an_offer_of_another_protocol_is_declined_and_the_connection_stays_usable(offer, size):
    """RFC 9110, 7.8. In pieces of any size."""
    bodies = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        bodies.append(body)
        await names(scope, lambda: asyncio.sleep(0, {}), send)

    data = (START + OFFERS[offer]) * 2 + START + b"connection: close\r\ncontent-length: 3\r\n\r\nend"
    async with connected(asyncio.Event(), app=app) as (reader, writer):
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await asyncio.sleep(0)
        answers = await asyncio.wait_for(reader.read(), 60)
    assert answers.count(b"200 OK") == 3
    assert bodies == [b"" if offer == "no body" else b"abc"] * 2 + [b"end"]


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


LATE = [(b"", b""), (b"\r\n", b""), (b"POST / HTTP/1.1\r\nhost", b"HTTP/1.1 408")]


@pytest.mark.parametrize(("sent", "answered"), LATE)
async def test_a_head_that_does_not_come_in_time_ends_the_connection(sent, answered):
    passing, (places, counted) = Passing(), counting()
    async with connected(asyncio.Event(), places) as connection:
        connection[1].write(sent)
        await arrived(connection)
        await passing.by(LIMITS.head - 1)
        assert not connection[0].at_eof()
        connection[1].write(b"o" if sent.endswith(b"host") else b"")  # a byte now and then does not help
        await arrived(connection)
        await passing.by(1)
        answer = await asyncio.wait_for(connection[0].read(), 60)
        assert (answer[:12], answer.count(b"HTTP/1.1")) == (answered, bool(answered))
    assert (places.open, counted) == (0, {LATE_HEAD: 1})


@pytest.mark.parametrize("more", [EMPTY * 100, EMPTY + b"\x00\x01"], ids=["requests", "garbage"])
async def test_what_cannot_be_answered_behind_other_requests_ends_the_connection(more):
    (places, counted), app = counting(), Slow()
    async with connected(asyncio.Event(), places, app) as connection:
        connection[1].write(EMPTY + more)
        assert await asyncio.wait_for(connection[0].read(), 60) == b""
    assert counted == Counter({PIPELINED: 1} if more == EMPTY * 100 else {})
    app.go_on.set()


async def test_without_a_place_the_answer_is_503_and_says_when_to_come_back():
    places = Connections(ConnectionLimits(most=0))
    async with connected(asyncio.Event(), places) as (reader, _):
        head, _, body = (await asyncio.wait_for(reader.read(), 60)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: " in head
    assert b"x-legato-drop-reason: connections_full" in head
    assert json.loads(body)["error"]["code"] == "overloaded"
    assert places.open == 0


@pytest.mark.parametrize(("rest", "size"), [(b"cd", 0), (b"", 32 << 20)], ids=["its body was refused", "reads nothing"])
async def test_an_answered_connection_ends_for_idleness(rest, size):
    """One whose body was refused is idle once that has come, and one whose client reads nothing is not kept."""
    passing, answered, places = Passing(), asyncio.Event(), Connections(LIMITS)

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % size)]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * size})
        answered.set()

    async with connected(asyncio.Event(), places, answers) as connection:
        if size:
            connection[1].transport.pause_reading()
        connection[1].write(START + (b"content-length: 4\r\n\r\nab" if rest else b"content-length: 0\r\n\r\n"))
        await asyncio.wait_for(answered.wait(), 60)
        connection[1].write(rest)
        await arrived(connection)
        await passing.by(LIMITS.idle - 1)
        assert places.open == 1
        await passing.by(1)
        if size:
            assert places.open == 1
            await passing.by(protocol.LAST_FLUSH)
        else:
            assert b"413" in await asyncio.wait_for(connection[0].read(), 60)
        assert places.open == 0


USED = {  # of uvicorn's protocol
    "connection_made", "connection_lost", "data_received", "on_message_begin", "on_url", "on_header", "on_body",
    "on_headers_complete", "on_message_complete", "on_response_complete", "send_400_response",
    "timeout_keep_alive_handler", "parser", "headers", "cycle", "flow", "loop", "pipeline",
}  # fmt: skip


def test_no_private_part_of_uvicorn_is_used_and_these_public_ones_are_there():
    """When a version of uvicorn lacks one, or takes a private name that we use, this fails instead of a gateway."""
    theirs = dir(HttpToolsProtocol(uvicorn.Config(names, log_config=None), ServerState(), {}, Mock()))
    nodes = ast.walk(ast.parse(inspect.getsource(BoundedProtocol)))
    own = [node for node in nodes if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "super()")]
    ours = {node.attr for node in own}
    assert (ours | {*vars(BoundedProtocol)}) & {*theirs} - {*dir(object), "__module__"} == USED
    cycle = RequestResponseCycle(**{name: Mock() for name in inspect.signature(RequestResponseCycle).parameters})
    assert {"response_started", "response_complete", "body", "disconnected", "message_event"} <= {*vars(cycle)}
    assert hasattr(FlowControl, "pause_reading")
