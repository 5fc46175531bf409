"""Connections at a worker's ports that send no request, or are too many, are closed and counted; others stay."""

import asyncio
import contextlib

import pytest

from legato_engine.server import http_protocol
from legato_engine.server.http_protocol import PATIENCE


@pytest.mark.parametrize("settings", [{"core_silence": 1000.0}])
@pytest.mark.parametrize("port", ["health", "control"])
@pytest.mark.parametrize("sent", [b"", b"GET /state HTT"])
async def test_a_connection_that_sends_no_whole_request_is_closed(bench, port, sent):
    async with bench.served() as (_, gateway):
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.ports[port])
        writer.write(sent)
        assert (await bench.get("health", "/healthz"))[0] == 200  # what was sent before was read by then
        await bench.skip(PATIENCE)
        await bench.skip(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 60)
        assert await bench.refused("late") == 1
        await gateway.ping()
        assert (await bench.get("control", "/state"))[0] == 200


@pytest.mark.parametrize("settings", [{"core_silence": 1000.0}])
@pytest.mark.parametrize("port", ["health", "control"])
@pytest.mark.parametrize("head", ["content-length: 1000000000\r\n", "transfer-encoding: chunked\r\n"])
async def test_no_more_of_a_body_is_read_than_any_request_needs(bench, port, head):
    """The token is not asked for before: a stranger, who is answered at once, could go on sending for a minute."""
    async with bench.served() as (_, gateway):
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.ports[port])
        writer.write(f"POST /drain HTTP/1.1\r\nhost: x\r\n{head}\r\n".encode())
        status = (await asyncio.wait_for(reader.readline(), 60)).split()[1]
        assert status == (b"401" if port == "control" else b"404")
        piece = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(90):
                for _ in range(3000):  # 100 MB
                    writer.write(piece)
                    await writer.drain()
        writer.close()
        assert await bench.refused("body") == 1
        await gateway.ping()
        assert (await bench.get("control", "/state"))[0] == 200


async def test_the_oldest_silent_connection_makes_room_and_gateways_keep_their_places(bench, monkeypatch):
    address = ("127.0.0.1", bench.ports["control"])

    async def is_closed(reader):
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        return True

    async with bench.served() as (_, gateway):
        monkeypatch.setattr(http_protocol, "MOST", 3)
        (oldest, _), (younger, writer) = [await asyncio.open_connection(*address) for _ in range(2)]
        assert (await bench.get("control", "/state"))[0] == 200
        assert await is_closed(oldest)
        assert not younger.at_eof()
        assert await bench.refused("connections") == 1  # asked at the other port, which has places of its own
        writer.close()
        await writer.wait_closed()
        monkeypatch.setattr(http_protocol, "MOST", 1)
        newcomer, _ = await asyncio.open_connection(*address)
        assert await is_closed(newcomer)
        await gateway.ping()
