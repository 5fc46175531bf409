"""Web pages that may call the API, and read what a connection answers by itself."""

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
from legato_gateway.http.connections.limits import Connections
from legato_gateway.http.connections.protocol import MAX_HEAD_BYTES

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-stainless-os",
}


def of_cors(answer: Any) -> set[str]:
    return {name for name in answer.headers if name.startswith("access-control-")}


async def test_without_a_setting_no_page_may(gateway):
    assert of_cors(await gateway.chat({"origin": PAGE})) == set()
    answer = await gateway.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert (answer.status_code, of_cors(answer)) == (405, set())


@pytest.mark.parametrize(("origins", "told"), [((PAGE, "http://localhost:3000"), PAGE), (("*",), "*")])
async def test_pages_that_are_set_may_without_credentials(make, origins, told):
    gateway = make(allowed_origins=origins)
    preflight = await gateway.http.options("/v1/chat/completions", headers=PREFLIGHT)
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == told
    assert preflight.headers["access-control-allow-headers"] == PREFLIGHT["access-control-request-headers"]
    assert "POST" in preflight.headers["access-control-allow-methods"]
    for answer in (preflight, await gateway.chat({"origin": PAGE}), await gateway.chat({"origin": PAGE}, stream=True)):
        assert answer.headers["access-control-allow-origin"] == told
        assert "access-control-allow-credentials" not in answer.headers
        assert told == "*" or "origin" in answer.headers["vary"].lower(), "caches tell pages apart"


async def test_streams_and_errors_can_be_read_with_their_headers(make):
    """A browser keeps an answer without these headers from the script, which then knows of no status and no error."""
    gateway = make(allowed_origins=(PAGE,))
    stream, wrong = await gateway.chat({"origin": PAGE}, stream=True), await gateway.chat({"origin": PAGE}, n=0)
    gateway.script(RuntimeError("a fault of ours"))
    message = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    faulty = await gateway.http.post("/v1/messages", json=message, headers={"origin": PAGE})
    assert "failed to handle this request" in faulty.json()["error"]["message"]
    for answer, status in ((stream, 200), (wrong, 400), (faulty, 500)):
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "retry-after", "x-legato-drop-reason", "x-legato-route"} <= set(exposed)
    assert [entry.status for entry in gateway.entries] == [200, 400, 500]


async def test_other_pages_may_not(make):
    gateway = make(allowed_origins=(PAGE,))
    for origin in ("https://evil.example.com", "https://chat.example.com.evil.com", "http://chat.example.com", "null"):
        assert "access-control-allow-origin" not in (await gateway.chat({"origin": origin})).headers
        answer = await gateway.http.options("/v1/chat/completions", headers={**PREFLIGHT, "origin": origin})
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers


ORIGIN = PAGE.encode()

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
    """A function that sends something to a server and returns its last answer's status, and headers for pages."""

    async def read(request: Any) -> Response:
        return Response(await request.body())

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
        return int(status[:3]), dict(line.split(": ", 1) for line in lines if line.startswith("access-control-"))

    async with listening(app, Connections(public=public), origins) as address:
        yield talk


@pytest.mark.parametrize("origins", [("http://localhost:3000", ORIGIN.decode()), ("*",)])
async def test_pages_may_read_what_a_connection_answers(origins):
    """With the headers that the application's answers have."""
    sent = START + b"origin: " + ORIGIN + b"\r\n"
    async with serving(origins) as talk:
        status, usual = await talk(sent + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        assert (status, usual["access-control-allow-origin"] in ("*", ORIGIN.decode())) == (200, True)
        for expected, rest in EARLY:
            assert await talk(sent + rest, expected == 408) == (expected, usual), rest[:40]


PAGES = (ORIGIN.decode(),)
OTHERS = [(PAGES, b"https://evil.example.com"), (PAGES, b"null"), (PAGES, b""), ((), ORIGIN)]


@pytest.mark.parametrize(("origins", "origin"), OTHERS)
async def test_other_pages_may_not_read_what_a_connection_answers(origins, origin):
    async with serving(origins) as talk:
        for expected, rest in EARLY:
            found = await talk(START + b"origin: " + origin + b"\r\n" + rest, expected == 408)
            assert found == (expected, {}), rest[:40]


async def test_an_origin_is_of_one_request_only():
    """And it needs to be read: a proxy may send requests of several pages over one connection."""
    whole = START + b"origin: " + ORIGIN + b"\r\ncontent-length: 0\r\n\r\n"
    async with serving(PAGES) as talk:
        for expected, rest in [(400, b"\x00\x01 no HTTP"), (408, b"POST / HTTP/1.1\r\norigin: "), (408, START)]:
            for before in (b"", whole):
                assert await talk(before + rest, expected == 408) == (expected, {}), rest
        assert await talk(b"\r\n" * (MAX_HEAD_BYTES // 2 + 1)) == (431, {}), "no request has come"


async def test_ports_of_the_gateways_own_take_no_part_in_it():
    async with serving(("*",), public=1) as talk:
        assert await talk(START + b"origin: " + ORIGIN + b"\r\n" + EARLY[0][1]) == (400, {})
