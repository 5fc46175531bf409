"""A worker's control port over TLS: the same service, a certificate that changes under streams, and strangers."""

import asyncio
import contextlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import certificates
import pytest
from certificates import TLSFiles
from websockets.asyncio.client import connect

from legato_engine.server import http_protocol
from legato_engine.server.worker import WorkerServer
from legato_engine.settings import WorkerSettings
from legato_protocol import stream
from legato_protocol.flags import SettingsError

NAME = "s-workers.demo.svc"
TOKEN = "a secret"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TLSFiles:
    return certificates.make(tmp_path_factory.mktemp("tls") / "first", names=f"subjectAltName=DNS:{NAME}")


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> TLSFiles:
    return certificates.make(tmp_path_factory.mktemp("tls") / "second", names=f"subjectAltName=DNS:{NAME}")


@pytest.fixture
def folder(tmp_path: Path, files: TLSFiles) -> Path:
    made = tmp_path / "internal-tls"
    made.mkdir()
    files.install(made)
    return made


def dial(bench: Any, authority: Path, path: str = "/stream", name: str = NAME) -> connect:
    return connect(
        f"wss://127.0.0.1:{bench.ports['control-tls']}{path}",
        ssl=ssl.create_default_context(cafile=authority),
        server_hostname=name,
        additional_headers={"Authorization": f"Bearer {TOKEN}"},
        compression=None,
        max_size=None,
        proxy=None,
    )


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {"internal_tls_folder": str(folder), "control_tls_port": 0, **more}


def test_streams_and_events_are_served_over_tls_and_beside_it_while_that_is_permissive(
    run: Any, folder: Path, files: TLSFiles
) -> None:
    async def test(bench: Any) -> None:
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
                (heard,) = await core.hear_frames()
                assert stream.decode_to_worker(heard.data) == large

    run(test, **settings(folder))


def test_strict_listens_nowhere_without_tls(run: Any, folder: Path, files: TLSFiles) -> None:
    async def test(bench: Any) -> None:
        assert bench.ports.keys() == {"health", "control-tls"}
        await bench.core()
        async with dial(bench, files.authority) as gateway:
            await bench.greet(gateway)
        context = ssl.create_default_context(cafile=files.authority)
        context.check_hostname = False
        request = urllib.request.Request(f"https://127.0.0.1:{bench.ports['control-tls']}/state")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            await asyncio.to_thread(urllib.request.urlopen, request, timeout=10, context=context)

    run(test, **settings(folder, internal_tls_mode="Strict"))


def test_who_expects_another_name_or_authority_or_sends_no_tls_gets_nothing(
    run: Any, folder: Path, files: TLSFiles, others: TLSFiles
) -> None:
    async def test(bench: Any) -> None:
        for authority, name in ((others.authority, NAME), (files.authority, "x-workers.demo.svc")):
            with pytest.raises(ssl.SSLCertVerificationError):
                async with dial(bench, authority, name=name):
                    pass
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.ports["control-tls"])
        writer.write(b"GET /state HTTP/1.1\r\nhost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"HTTP" not in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        await _until_refused(bench, "bad_handshake")

    run(test, **settings(folder))


async def _until_refused(bench: Any, reason: str) -> None:
    async with asyncio.timeout(10):
        while not await bench.refused(reason):  # noqa: ASYNC110 - of another end
            await asyncio.sleep(0.005)


def test_handshakes_count_as_connections_and_end(
    run: Any, folder: Path, files: TLSFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Any) -> None:
        monkeypatch.setattr(http_protocol, "MOST", 2)
        address = ("127.0.0.1", bench.ports["control-tls"])
        silent = [await asyncio.open_connection(*address) for _ in range(3)]
        await _until_refused(bench, "connections")
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()
        assert await bench.refused("late_handshake") == 2
        async with dial(bench, files.authority) as gateway:
            await bench.core()
            await bench.greet(gateway)

    monkeypatch.setattr(http_protocol, "PATIENCE", 0.3)
    run(test, **settings(folder))


def test_a_certificate_changes_under_a_stream_and_a_bad_one_changes_nothing(
    run: Any, folder: Path, files: TLSFiles, others: TLSFiles
) -> None:
    async def shows(bench: Any, authority: Path) -> bool:
        try:
            async with dial(bench, authority):
                return True
        except ssl.SSLCertVerificationError:
            return False

    async def until(condition: Callable[[], Awaitable[bool]]) -> None:
        while not await condition():  # noqa: ASYNC110 - of files
            await asyncio.sleep(0.01)

    async def test(bench: Any) -> None:
        def metric_is(value: float) -> Callable[[], Awaitable[bool]]:
            async def holds() -> bool:
                return f"legato_worker_internal_tls_invalid {value:.1f}" in (await bench.get("health", "/metrics"))[1]

            return holds

        await bench.core()
        async with dial(bench, files.authority) as gateway, asyncio.timeout(20):
            await bench.greet(gateway)
            (folder / "tls.key").write_text("nothing")
            await until(metric_is(1))
            assert await shows(bench, files.authority)
            others.install(folder)
            await until(lambda: shows(bench, others.authority))
            assert await metric_is(0)()
            await gateway.ping()
        assert any(line.startswith("ERROR files of internal TLS stay as they were") for line in bench.logged)

    run(test, **settings(folder))


def test_a_certificate_that_only_hand_offs_refuse_is_told_and_streams_use_it(
    run: Any, folder: Path, files: TLSFiles, tmp_path: Path
) -> None:
    """Other workers do not take one that is for servers alone; gateways, which it is shown to, do."""
    names = f"subjectAltName=DNS:{NAME}\nextendedKeyUsage=serverAuth"
    servers_only = certificates.make(tmp_path / "third", names=names, of=files)

    async def test(bench: Any) -> None:
        async def until_metric_is(value: float) -> None:
            line = f"legato_worker_internal_tls_invalid {value:.1f}"
            while line not in (await bench.get("health", "/metrics"))[1]:  # noqa: ASYNC110 - of files
                await asyncio.sleep(0.01)

        await bench.core()
        async with asyncio.timeout(20):
            await until_metric_is(0)
            servers_only.install(folder)
            await until_metric_is(1)
            async with dial(bench, files.authority) as gateway:
                await bench.greet(gateway)
            files.install(folder)
            await until_metric_is(0)
        told = [line for line in bench.logged if line.startswith("ERROR")]
        assert len(told) == 1
        assert "certificates of hand-offs stay as they were: " in told[0]
        assert "other workers would refuse it in hand-offs" in told[0]

    run(test, **settings(folder, internal_tls_name=NAME))


def test_one_that_they_refuse_from_the_start_stops_it_where_there_are_hand_offs(folder: Path) -> None:
    given = WorkerSettings("decode", "d0", "m", internal_tls_folder=str(folder), internal_tls_name="other.demo.svc")
    with pytest.raises(SettingsError, match=r"--internal-tls-folder .* other workers would refuse it in hand-offs"):
        WorkerServer(given, lambda _m, _p: Path("/model"), lambda: None, lambda _l, _t: None)  # type: ignore[arg-type, return-value]
    WorkerServer(replace(given, transport="None"), lambda _m, _p: Path("/model"), lambda: None, lambda _l, _t: None)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key", "ca.crt"])
def test_without_a_file_a_worker_does_not_start(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    given = WorkerSettings("decode", "d0", "m", internal_tls_folder=str(folder))
    with pytest.raises(SettingsError, match=rf"--internal-tls-folder .*{missing}: No such file"):
        WorkerServer(given, lambda _m, _p: Path("/model"), lambda: None, lambda _l, _t: None)  # type: ignore[arg-type, return-value]


def test_an_authority_that_is_none_is_named(folder: Path) -> None:
    (folder / "ca.crt").write_text("nothing")
    given = WorkerSettings("decode", "d0", "m", internal_tls_folder=str(folder))
    with pytest.raises(SettingsError, match=r"ca\.crt: no certificates in PEM"):
        WorkerServer(given, lambda _m, _p: Path("/model"), lambda: None, lambda _l, _t: None)  # type: ignore[arg-type, return-value]
