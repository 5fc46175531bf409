"""Real workers, each two processes, and gateways that speak to them frame by frame."""

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from legato_protocol.sampling.parameters import SamplingParams
from legato_protocol.wire import stream
from legato_protocol.wire.packed_tokens import pack_tokens
from legato_protocol.wire.stream import Decode, Failed, Generate, Greeting, Hello, Peer, Prefill, Sequence, Tokens

TOKEN = "of a test"
PATIENCE = 90.0
PROMPT = (504, 3575, 282, 4649, 314)  # "The capital of France is"
LONG = 96  # tokens


@dataclass
class Process:
    popen: subprocess.Popen[bytes]
    ports: dict[str, int]
    log: Path

    def get(self, port: str, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}", method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Posts to the control port."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports['control']}{path}", body)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

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
    """Started by any of its threads."""
    started = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for of_thread in started for child in of_thread]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    """Asks the more rarely the longer it has waited: answers take time from what is waited for."""
    began = time.monotonic()
    while not holds():
        waited = time.monotonic() - began
        assert waited < patience
        time.sleep(min(0.01 + waited / 20, 0.25))


def start(folder: Path, *flags: str, model: str = "builtin:smollm2-135m-instruct") -> Process:
    announce, log = folder / "ports.json", folder / "log"
    own = {"--role": "unified", "--name": "w0", "--model": model, "--announce": str(announce)}
    own |= {"--health-port": "0", "--control-port": "0", "--max-length": "512", "--kv-cache-memory": "64Mi"}
    own |= {"--threads": "1", "--transport": "None"}
    command = [
        sys.executable,
        "-m",
        "legato_cli.main",
        "worker",
        *(word for flag in own.items() for word in flag),
        *flags,
    ]
    with log.open("wb") as file:
        popen = subprocess.Popen(command, stderr=file, env=os.environ | {"LEGATO_TOKEN": TOKEN})
    until(lambda: announce.exists() or popen.poll() is not None)
    ports = json.loads(announce.read_text()) if announce.exists() else {}
    return Process(popen, ports, log)


def generate(id: str = "r", max_tokens: int = 4) -> Generate:
    params = SamplingParams(max_tokens=max_tokens, seed=1, temperature=0.0)
    return Generate(id, 1, Sequence(pack_tokens(PROMPT), len(PROMPT), params, 60.0))


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


async def hand_over(prefill: Process, decode: Process) -> tuple[list[int], list[int]]:
    """Tokens of one worker, and of the same sequence handed over to the other."""
    async with prefill.dial("/stream") as p, decode.dial("/stream") as d:
        sender, receiver = [peer_of(await greet(socket)) for socket in (p, d)]
        await p.send(stream.encode(generate("alone", LONG)))
        alone = await collect(p, "alone", LONG)
        wanted = generate("r", LONG).sequence
        await d.send(stream.encode(Decode("r", 1, 77, wanted, sender)))
        await p.send(stream.encode(Prefill("r", 1, 77, wanted, receiver)))
        travelled = await collect(d, "r", LONG)
        report = decode.state()["handoffs"][-1]
        assert (report["source"], report["transport"]) == (sender.worker, "ucx:tcp")
        return alone, travelled


def peer_of(hello: Hello) -> Peer:
    return Peer(hello.worker, hello.epoch, hello.address, hello.handoff_tls)


async def collect(socket: ClientConnection, id: str, count: int) -> list[int]:
    """At least `count` tokens, as they come."""
    made: list[int] = []
    while len(made) < count:
        frame = await hear(socket, Tokens | Failed)
        assert isinstance(frame, Tokens), frame
        made += [token for item in frame.items if item.id == id for token in item.token_ids]
    return made
