"""A real worker: two processes, the real model, real signals. One started worker serves most tests of this file."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from legato_protocol import stream
from legato_protocol.kv_events import Snapshot, decode_event
from legato_protocol.stream import (
    Decode,
    Failed,
    Generate,
    Greeting,
    Handoff,
    Hello,
    Load,
    Lost,
    Peer,
    Prefill,
    SamplingParams,
    Sequence,
    Tokens,
)

TOKEN = "of a test"
PATIENCE = 90.0
PROMPT = (504, 3575, 282, 4649, 314)  # "The capital of France is"
PARIS = 7042  # " Paris"
PROGRAM = """
import argparse, sys
from legato_cli import worker
parser = argparse.ArgumentParser()
worker.add_parser(parser.add_subparsers())
flags = parser.parse_args()
sys.exit(flags.run(flags))
"""


@dataclass
class Process:
    popen: subprocess.Popen[bytes]
    ports: dict[str, int]
    log: Path

    def get(self, port: str, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}", method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def state(self) -> dict[str, Any]:
        return json.loads(self.get("control", "/state")[1])

    @property
    def ready(self) -> bool:
        return self.get("health", "/readyz")[0] == 200

    def core(self) -> int:
        """The process id of its core."""
        (pid,) = children(self.popen.pid)
        return pid

    def dial(self, path: str) -> connect:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return connect(f"ws://127.0.0.1:{self.ports['control']}{path}", additional_headers=headers, proxy=None)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(folder: Path, *flags: str, model: str = "builtin:smollm2-135m-instruct") -> Process:
    announce, log = folder / "ports.json", folder / "log"
    own = {"--role": "unified", "--name": "w0", "--model": model, "--announce": str(announce)}
    own |= {"--health-port": "0", "--control-port": "0", "--max-length": "512", "--kv-cache-memory": "64Mi"}
    own |= {"--threads": "1", "--transport": "None"}
    command = [sys.executable, "-c", PROGRAM, "worker", *(word for flag in own.items() for word in flag), *flags]
    with log.open("wb") as file:
        popen = subprocess.Popen(command, stderr=file, env=os.environ | {"LEGATO_TOKEN": TOKEN})
    until(lambda: announce.exists() or popen.poll() is not None)
    ports = json.loads(announce.read_text()) if announce.exists() else {}
    return Process(popen, ports, log)


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = start(tmp_path_factory.mktemp("worker"))
    until(lambda: process.ready)
    yield process
    process.popen.kill()
    process.popen.wait()


def generate(id: str = "r", max_tokens: int = 4) -> Generate:
    params = SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0)
    return Generate(id, 1, Sequence(stream.pack_tokens(PROMPT), len(PROMPT), params, 60.0))


async def greet(socket: ClientConnection) -> Hello:
    await socket.send(stream.encode(Greeting("g0")))
    return await hear(socket, Hello)


async def hear(socket: ClientConnection, kind: type) -> stream.FromWorker:
    """The next frame of this kind."""
    async with asyncio.timeout(PATIENCE):
        while True:
            data = await socket.recv()
            assert isinstance(data, bytes)
            frame = stream.decode_from_worker(data)
            if isinstance(frame, kind):
                return frame


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
        for garbage in (b"\xc1", bytes(stream.MAX_FRAME_BYTES + 1), "text"):
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
            assert not worker.ready
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
    """Over UCX, with the KV of the real model: the tokens are those of one worker alone."""
    names = ("p0", "d0", "d1")
    for name in names:
        (tmp_path / name).mkdir()
    flags = ("--transport", "TCP", "--dtype", "Float32")
    workers = [start(tmp_path / name, "--name", name, *flags) for name in names]
    try:
        for process in workers:
            until(lambda process=process: process.ready)
        alone, travelled = asyncio.run(hand_over_twice(*workers))
    finally:
        for process in workers:
            process.popen.kill()
            process.popen.wait()
    assert travelled == alone
    assert alone[0] == PARIS


async def hand_over_twice(prefill: Process, first: Process, second: Process) -> tuple[list[int], list[int]]:
    """What one worker makes, and what the sequence made that was handed over and migrated."""
    async with prefill.dial("/stream") as p, first.dial("/stream") as a, second.dial("/stream") as b:
        peers = [peer_of(await greet(socket)) for socket in (p, a, b)]
        await p.send(stream.encode(generate("alone", 24)))
        alone = await collect(p, "alone", 24)
        wanted = generate("r", 24).sequence
        await a.send(stream.encode(Decode("r", 1, 77, wanted, peers[0])))
        await p.send(stream.encode(Prefill("r", 1, 77, wanted, peers[1])))
        made = await collect(a, "r", 5)
        known = msgspec.structs.replace(wanted, token_ids=stream.pack_tokens([*PROMPT, *made]))
        await b.send(stream.encode(Decode("r", 2, 78, known, peers[1])))
        await a.send(stream.encode(Handoff("r", 2, 78, peers[2])))
        made += await collect(b, "r", 24 - len(made))
        report = second.state()["handoffs"][-1]
        assert (report["source"], report["transport"]) == ("d0", "ucx:tcp")
        return alone, made


def peer_of(hello: Hello) -> Peer:
    return Peer(hello.worker, hello.epoch, hello.address)


async def collect(socket: ClientConnection, id: str, count: int) -> list[int]:
    """At least `count` tokens, as they come."""
    made: list[int] = []
    while len(made) < count:
        frame = await hear(socket, Tokens | Failed)
        assert isinstance(frame, Tokens), frame
        made += [token for item in frame.items if item.id == id for token in item.token_ids]
    return made


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
        (["--device", "cuda", "--transport", "TCP"], "--device: cuda computes, but cannot hand KV off yet"),
        (["--model", "/no/such/model"], "/no/such/model"),
        (["--dtype", "BFloat16", "--kv-cache-dtype", "Float32"], "KV cannot be Float32 with bfloat16"),
    ):
        process = start(tmp_path, *flags)
        assert process.popen.wait(PATIENCE) == 2
        assert said in process.log.read_text()
