"""A real worker: two processes, the real model, real signals. One started worker serves most tests of this file."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import certificates
import pytest
import torch
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from worker_process import (
    PARIS,
    PATIENCE,
    Process,
    alive,
    children,
    collect,
    generate,
    greet,
    hand_over_twice,
    hear,
    start,
    until,
)

from legato_protocol import stream
from legato_protocol.kv_events import Snapshot, decode_event
from legato_protocol.load import Load
from legato_protocol.messages import MAX_FRAME_BYTES
from legato_protocol.stream import Failed, Greeting, Hello, Lost, Tokens


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = start(tmp_path_factory.mktemp("worker"))
    until(lambda: process.ready)
    yield process
    process.popen.kill()
    process.popen.wait()


async def generate_here(socket: ClientConnection, id: str) -> list[int]:
    await socket.send(stream.encode(generate(id)))
    return await collect(socket, id, 4)


def test_it_computes_with_the_real_model(worker: Process) -> None:
    async def test() -> None:
        async with worker.dial("/stream") as gateway, worker.dial("/events") as events:
            hello = await greet(gateway)
            assert (hello.worker, hello.role, hello.max_length) == ("w0", "unified", 512)
            assert (await generate_here(gateway, "r"))[0] == PARIS
            while (load := await hear(gateway, Load)).running:
                pass
            assert (load.used_blocks, load.free_blocks + load.cached_blocks) == (0, hello.num_blocks)
            await events.send(stream.encode(Greeting("g0")))
            assert isinstance(decode_event(await asyncio.wait_for(events.recv(), PATIENCE)), Snapshot)

    asyncio.run(test())


def test_bad_frames_leave_it_working(worker: Process) -> None:
    async def test() -> None:
        for garbage in (b"\xc1", bytes(MAX_FRAME_BYTES + 1), "text"):
            async with worker.dial("/stream") as offender:
                await greet(offender)
                with contextlib.suppress(ConnectionClosed):
                    await offender.send(garbage)
                await asyncio.wait_for(offender.wait_closed(), PATIENCE)
        async with worker.dial("/stream") as gateway:
            await greet(gateway)
            assert (await generate_here(gateway, "after"))[0] == PARIS

    before = worker.core()
    asyncio.run(test())
    assert worker.core() == before


def test_the_server_process_is_lean(worker: Process) -> None:
    pages = int(Path(f"/proc/{worker.popen.pid}/statm").read_text().split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") <= 120 << 20
    assert "libtorch" not in Path(f"/proc/{worker.popen.pid}/maps").read_text()


def test_a_core_is_out_of_reach_of_ctrl_c_but_in_the_session_of_its_server(worker: Process) -> None:
    """Priorities hold within a session: one for each core would make those of prefill workers useless."""
    assert os.getpgid(worker.core()) == worker.core()
    assert os.getsid(worker.core()) == os.getsid(worker.popen.pid)


def test_a_killed_core_is_reported_and_replaced(worker: Process) -> None:
    async def test() -> None:
        async with worker.dial("/stream") as gateway:
            hello = await greet(gateway)
            os.kill(worker.core(), signal.SIGKILL)
            lost = await hear(gateway, Lost)
            assert lost.epoch == hello.epoch
            assert "SIGKILL" in lost.reason
            again = await hear(gateway, Hello)
            assert again.epoch != hello.epoch
            assert again.kv_revision == hello.kv_revision
            assert (await generate_here(gateway, "again"))[0] == PARIS

    asyncio.run(test())
    assert worker.ready


def test_a_recalled_worker_finishes_what_it_ran_and_takes_more(worker: Process) -> None:
    async def test() -> None:
        async with worker.dial("/stream") as gateway:
            await greet(gateway)
            await gateway.send(stream.encode(generate("long", 60)))
            await hear(gateway, Tokens)
            assert worker.get("control", "/drain", "POST")[0] == 202
            while not (await hear(gateway, Load)).draining:
                pass
            assert worker.ready
            assert worker.get("control", "/drain", "DELETE")[0] == 200
            while (load := await hear(gateway, Load)).draining:
                pass
            assert load.credits
            assert worker.ready
            await gateway.send(stream.encode(generate("more")))
            more, finished = 0, set[str]()
            while finished != {"long", "more"}:
                items = (await hear(gateway, Tokens)).items
                more += sum(len(item.token_ids) for item in items if item.id == "more")
                finished |= {item.id for item in items if item.finish}
            assert more == 4

    asyncio.run(test())


def test_sigterm_lets_it_finish_and_exit_with_0(worker: Process) -> None:
    """The last test of the shared worker."""

    async def test() -> None:
        async with worker.dial("/stream") as gateway:
            await greet(gateway)
            await gateway.send(stream.encode(generate("long", 100)))
            await hear(gateway, Tokens)
            worker.popen.send_signal(signal.SIGTERM)
            while not (await hear(gateway, Load)).draining:
                pass
            await gateway.send(stream.encode(generate("late")))
            refused = await hear(gateway, Failed)
            assert (refused.id, refused.code, refused.retry) == ("late", "draining", True)
            while not any(item.finish for item in (await hear(gateway, Tokens)).items):
                pass

    core = worker.core()
    asyncio.run(test())
    assert worker.popen.wait(PATIENCE) == 0
    assert not alive(core)


def test_a_sequence_goes_from_one_process_to_another_and_on_to_a_third_when_that_drains(tmp_path: Path) -> None:
    """Over UCX, with the KV of the real model: the tokens are those of one worker alone. Two of them have internal TLS,
    as when a service is given it."""
    names = ("p0", "d0", "d1")
    for name in (*names, "tls"):
        (tmp_path / name).mkdir()
    certificates.make(tmp_path / "made", names="subjectAltName=DNS:s").install(tmp_path / "tls")
    tls = ("--internal-tls-folder", str(tmp_path / "tls"), "--internal-tls-name", "s", "--control-tls-port", "0")
    flags = ("--transport", "TCP", "--dtype", "Float32")
    workers = [start(tmp_path / name, "--name", name, *flags, *(tls if name != "d1" else ())) for name in names]
    try:
        for process in workers:
            until(lambda process=process: process.ready)
        alone, travelled = asyncio.run(hand_over_twice(*workers))
        connections = ('{what="tls_peers"} 1.0', '{what="plain_peers"} 1.0')
        until(lambda: all(each in workers[1].get("health", "/metrics")[1] for each in connections))
    finally:
        for process in workers:
            process.popen.kill()
            process.popen.wait()
    assert travelled == alone
    assert alone[0] == PARIS


def test_no_core_outlives_a_killed_server(tmp_path: Path) -> None:
    process = start(tmp_path)
    until(lambda: children(process.popen.pid))
    core = process.core()
    process.popen.kill()
    process.popen.wait()
    until(lambda: not alive(core), 10)


def test_settings_and_models_that_cannot_work_end_the_start_with_2(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF but nothing else")
    for flags, said in (
        (["--block-size", "17"], "--block-size: not a valid number: 17 (a power of two"),
        (["--kv-cache-memory", "1Ki"], "kvCacheMemory of 1,024 bytes"),
        (["--kv-cache-memory", "1000Ti"], "are available: give a kvCacheMemory of at most "),
        (["--model", str(broken)], "broken.gguf"),
        *(
            ()
            if torch.cuda.is_available()
            else [(["--device", "cuda", "--transport", "None"], "device cuda was asked")]
        ),
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--dtype", "BFloat16", "--kv-cache-dtype", "Float32"], "KV cannot be Float32 with bfloat16"),
    ):
        process = start(tmp_path, *flags)
        assert process.popen.wait(PATIENCE) == 2
        assert said in process.log.read_text()
