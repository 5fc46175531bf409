"""Connections at a worker's ports that send no request, or are too many, are closed and counted; others stay."""

import asyncio
import contextlib
from typing import Any

import pytest

from legato_engine.server import http_protocol
from legato_engine.server.http_protocol import PATIENCE


@pytest.mark.parametrize("settings", [{"core_silence": 1000.0}])
@pytest.mark.parametrize("port", ["health", "control"])
@pytest.mark.parametrize("sent", [b"", b"GET /state HTT"])
async def test_a_connection_that_sends_no_whole_request_is_closed(bench: Any, port: str, sent: bytes) -> None:
    async with bench.served() as (_, gateway):
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.ports[port])
        writer.write(sent)
        assert (await bench.get("health", "/healthz"))[0] == 200  # what was sent before was read by then
        await bench.skip(PATIENCE)
        await bench.skip(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 10)
        assert await bench.refused("late") == 1
        await gateway.ping()
        assert (await bench.get("control", "/state"))[0] == 200


@pytest.mark.parametrize("settings", [{"core_silence": 1000.0}])
@pytest.mark.parametrize("port", ["health", "control"])
@pytest.mark.parametrize("head", ["content-length: 1000000000\r\n", "transfer-encoding: chunked\r\n"])
async def test_no_more_of_a_body_is_read_than_any_request_needs(bench: Any, port: str, head: str) -> None:
    """The token is not asked for before: a stranger, who is answered at once, could go on sending for a minute."""
    async with bench.served() as (_, gateway):
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.ports[port])
        writer.write(f"POST /drain HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode())
        status = (await asyncio.wait_for(reader.readline(), 10)).split()[1]
        assert status == (b"401" if port == "control" else b"404")
        piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(30):
                for _ in range(3000):  # 100 MB
                    writer.write(piece)
                    await writer.drain()
        writer.close()
        assert await bench.refused("body") == 1
        await gateway.ping()
        assert (await bench.get("control", "/state"))[0] == 200


async def test_each_request_may_have_as_much(bench: Any) -> None:
    await bench.core()
    size = http_protocol.MAX_BODY_BYTES // 2
    head, body = b"GET /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size, b"x" * size
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.ports["health"])
    writer.write(head)
    for _ in range(8):
        assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"ok\n"), 10)
        writer.write(body + head)
    assert await bench.refused("body") == 0
    writer.close()


async def test_connections_beyond_the_most_are_closed_and_places_come_back(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_protocol, "MOST", 2)
    address = ("127.0.0.1", bench.ports["control"])
    kept = [await asyncio.open_connection(*address) for _ in range(2)]
    reader, _ = await asyncio.open_connection(*address)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    assert await bench.refused("connections") == 1  # at the other port, which has places of its own
    for _, writer in kept:
        writer.close()
        await writer.wait_closed()
    assert (await bench.get("control", "/state"))[0] == 200
