"""TLS at the public port: handshakes have places and a limited time, and files are taken in without a restart."""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import certificates
import pytest
import uvicorn
from certificates import TLSFiles
from waiting import until

from legato_gateway.http.connections import protocol
from legato_gateway.http.connections.limits import MADE_ROOM, NO_ROOM, ConnectionLimits, Connections
from legato_gateway.http.connections.protocol import BoundedProtocol
from legato_gateway.http.server import PublicCertificate
from legato_protocol.process.followed_files import InvalidFile
from legato_protocol.security import tls_server
from legato_protocol.security.tls_server import LATE_HANDSHAKE, Handshake, TLSServer

pytestmark = pytest.mark.uvloop
LOG = logging.getLogger(__name__)
ASK = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


async def length(scope: Any, receive: Any, send: Any) -> None:
    """Reads the whole body, then answers with its scheme and its length."""
    size, message = 0, {"more_body": True}
    while message.get("more_body"):
        message = await receive()
        size += len(message.get("body", b""))
    body = f"{scope['scheme']} {size}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Serving:
    """A server, what it counted, and its pending handshakes."""

    def __init__(self, certificate: PublicCertificate, limits: ConnectionLimits) -> None:
        self.counted = Counter[str]()
        self.now = 0.0
        self.places = Connections(limits, None, lambda reason: self.counted.update([reason]), lambda: self.now)
        config = uvicorn.Config(length, http=protocol.factory(self.places), log_config=None, lifespan="off")
        config.load()
        state = uvicorn.server.ServerState()
        self.pending: set[Any] = state.connections
        make = functools.partial(BoundedProtocol, self.places, config, state, {})
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = TLSServer(self.listener, certificate, self.places, self.pending, make, limits.head)
        self.port = self.listener.getsockname()[1]

    async def connect(self, authority: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.create_default_context(cafile=authority)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname="localhost")

    async def silent(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        before = self.places.open
        connection = await asyncio.open_connection("127.0.0.1", self.port)
        await until(lambda: self.places.open > before)
        return connection

    async def asked(self, authority: Path, size: int = 3) -> bytes:
        """Returns the answer to a body of this size on a new connection."""
        reader, writer = await self.connect(authority)
        writer.write(ASK % size + b"x" * size)
        await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readexactly(len(b"https %d" % size))
        writer.close()
        return answer


@contextlib.asynccontextmanager
async def serving(
    files: TLSFiles, limits: ConnectionLimits | None = None, certificate: PublicCertificate | None = None
) -> AsyncIterator[Serving]:
    made = Serving(certificate or PublicCertificate(files.certificate, files.key), limits or ConnectionLimits())
    made.server.start()
    async with asyncio.timeout(90):
        try:
            yield made
        finally:
            made.server.close()
            made.listener.close()
            for each in list(made.pending):
                each.shutdown()


@pytest.mark.parametrize("size", [3, 3 << 20])
async def test_what_a_client_sends_at_once_after_its_handshake_is_read_whole(files, size):
    async with serving(files) as server:
        asked = [server.asked(files.authority, size) for _ in range(4)]
        assert await asyncio.gather(*asked) == [b"https %d" % size] * 4
        await until(lambda: server.places.open == 0)
        assert not server.pending
        server.places.check_integrity()


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"])
async def test_a_handshake_that_is_not_over_in_time_ends(files, sent):
    async with serving(files, ConnectionLimits(head=0.05)) as server:
        reader, writer = await server.silent()
        writer.write(sent)
        assert await reader.read() == b""
        await until(lambda: server.places.open == 0)
        assert (server.counted, server.pending) == ({LATE_HANDSHAKE: 1}, set())
        writer.close()


async def test_a_handshake_takes_a_place_and_makes_room_once_it_is_old(files):
    async with serving(files, ConnectionLimits(most=1)) as server:
        reader, writer = await server.silent()
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await server.connect(files.authority)
        server.now += 2.0
        assert await server.asked(files.authority) == b"https 3"
        assert await reader.read() == b""
        assert server.counted == {NO_ROOM: 1, MADE_ROOM: 1}
        server.places.check_integrity()
        writer.close()


async def test_a_connection_that_is_idle_makes_room_immediately_though_its_client_says_nothing(files, monkeypatch):
    """Its place was that of its handshake: it is not counted twice. A leave that TLS takes is not waited for."""
    monkeypatch.setattr(tls_server, "LAST_FLUSH", 600.0)
    async with serving(files, ConnectionLimits(most=1)) as server:
        _, writer = await server.connect(files.authority)
        await until(lambda: not any(isinstance(each, Handshake) for each in server.pending))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        assert server.places.open == 1
        server.now += 2.0
        assert await server.asked(files.authority) == b"https 3"
        await until(lambda: not server.pending)
        assert server.places.open == 0
        assert server.counted == {MADE_ROOM: 1}
        writer.transport.abort()


async def test_a_server_that_ends_ends_handshakes_and_accepts_none(files):
    async with serving(files) as server:
        reader, writer = await server.silent()
        server.server.close()
        (handshake,) = server.pending
        handshake.shutdown()
        assert await reader.read() == b""
        assert (server.pending, server.places.open) == (set(), 0)
        writer.close()


async def test_a_new_certificate_is_for_new_connections_and_a_bad_one_for_none(files, others, tmp_path, caplog):
    installed = files.install(tmp_path)
    certificate = PublicCertificate(installed.certificate, installed.key, interval=0.001)
    following = asyncio.create_task(certificate.follow(LOG.log))
    async with serving(installed, certificate=certificate) as server:
        reader, writer = await server.connect(files.authority)
        first = certificate.context
        installed.certificate.write_bytes(others.certificate.read_bytes())
        await until(lambda: "key values mismatch" in certificate.problem)
        assert await server.asked(files.authority) == b"https 3"
        assert certificate.context is first
        installed.key.write_bytes(others.key.read_bytes())
        await until(lambda: not certificate.problem)
        assert await server.asked(others.authority) == b"https 3"
        with pytest.raises(ssl.SSLCertVerificationError):
            await server.connect(files.authority)
        writer.write(ASK % 0)
        assert (await reader.readuntil(b"https 0")).startswith(b"HTTP/1.1 200")
        writer.close()
    following.cancel()
    assert [record.levelname for record in caplog.records if "TLS certificate" in record.message] == ["ERROR"]


def test_files_that_are_none_are_named_and_no_password_is_asked_for(files, others, tmp_path):
    garbage = tmp_path / "garbage"
    garbage.write_text("-----BEGIN CERTIFICATE-----\nnothing\n")
    encrypted = certificates.make(tmp_path / "encrypted", password="secret")
    wrong = {
        "No such file": (tmp_path / "none", files.key),
        "none: No such file": (files.certificate, tmp_path / "none"),
        "no certificate in PEM": (garbage, files.key),
        "key values mismatch": (files.certificate, others.key),
        str(encrypted.key): (encrypted.certificate, encrypted.key),
    }
    for said, (certificate, key) in wrong.items():
        with pytest.raises(InvalidFile, match=said):
            PublicCertificate(certificate, key)
