"""A worker's control port over TLS: the same service, a certificate that changes under streams, and strangers."""

import asyncio
import contextlib
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from waiting import until
from websockets.asyncio.client import connect

from legato_engine.server import http_protocol
from legato_engine.server.worker import WorkerServer
from legato_engine.settings import WorkerSettings
from legato_protocol.settings.flags import SettingsError
from legato_protocol.wire import stream

NAME = "s-workers.demo.svc"
TOKEN = "a secret"


@pytest.fixture
def folder(tmp_path, files):
    installed = tmp_path / "internal-tls"
    installed.mkdir()
    files.install(installed)
    return installed


@pytest.fixture
def more():
    return {}


@pytest.fixture
def settings(folder, more):
    return {"internal_tls_folder": str(folder), "control_tls_port": 0, **more}


def dial(bench, authority, path="/stream", name=NAME):
    context, headers = ssl.create_default_context(cafile=authority), {"Authorization": f"Bearer {TOKEN}"}
    url, plain = f"wss://127.0.0.1:{bench.ports['control-tls']}{path}", {"compression": None, "proxy": None}
    return connect(url, ssl=context, server_hostname=name, additional_headers=headers, max_size=None, **plain)


async def test_streams_and_events_are_served_over_tls_and_beside_it_while_that_is_permissive(bench, folder, files):
    core = await bench.core()
    async with dial(bench, files.authority) as secured, bench.dial("/stream") as plain:
        for gateway in (secured, plain):
            assert (await bench.greet(gateway)).worker == "d0"
        async with dial(bench, files.authority, "/events") as events:
            await events.send(stream.encode(stream.Greeting("g1")))
            assert await bench.event(events)
        large = bench.generate(tokens=(1,) * 500_000)
        for gateway in (secured, plain):
            await gateway.send(stream.encode(large))
            assert (await core.hear_frame())[1] == large


@pytest.mark.parametrize("more", [{"internal_tls_mode": "Strict"}])
async def test_strict_listens_nowhere_without_tls(bench, folder, files):
    assert bench.ports.keys() == {"health", "control-tls"}
    await bench.core()
    async with dial(bench, files.authority) as gateway:
        await bench.greet(gateway)
    context = ssl.create_default_context(cafile=files.authority)
    context.check_hostname = False
    url = f"https://127.0.0.1:{bench.ports['control-tls']}/state"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        await asyncio.to_thread(urllib.request.urlopen, url, timeout=10, context=context)


async def test_who_expects_another_name_or_authority_or_sends_no_tls_gets_nothing(bench, folder, files, others):
    for authority, name in ((others.authority, NAME), (files.authority, "x-workers.demo.svc")):
        with pytest.raises(ssl.SSLCertVerificationError):
            async with dial(bench, authority, name=name):
                pass
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.ports["control-tls"])
    writer.write(b"GET /state HTTP/1.1\r\nhost: x\r\n\r\n")
    with contextlib.suppress(ConnectionResetError):
        assert b"HTTP" not in await asyncio.wait_for(reader.read(), 60)
    writer.close()
    await until(lambda: bench.refused("bad_handshake"))


async def test_handshakes_count_as_connections_and_end(bench, folder, files, monkeypatch):
    monkeypatch.setattr(http_protocol, "MOST", 2)
    address = ("127.0.0.1", bench.ports["control-tls"])
    silent = [await asyncio.open_connection(*address) for _ in range(3)]
    await until(lambda: bench.refused("connections"))
    await bench.skip(http_protocol.PATIENCE)
    for reader, writer in silent:
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
    assert await bench.refused("late_handshake") == 2
    async with dial(bench, files.authority) as gateway:
        await bench.core()
        await bench.greet(gateway)


def server(folder, **more):
    given = WorkerSettings("decode", "d0", "m", internal_tls_folder=str(folder), **more)
    return WorkerServer(given, lambda _m, _p: Path("/model"), lambda: None, lambda _l, _t: None)


def test_a_certificate_that_other_workers_would_refuse_stops_the_start_where_there_are_hand_offs(folder):
    other = {"internal_tls_name": "other.demo.svc"}
    with pytest.raises(SettingsError, match=r"--internal-tls-folder .* other workers would refuse it in hand-offs"):
        server(folder, **other)
    server(folder, transport="None", **other)
