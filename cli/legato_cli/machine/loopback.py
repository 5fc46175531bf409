"""Measures latency and bandwidth of hand-offs on this machine, between two child processes.

Their commands are `python -m legato_cli.machine.loopback measure|echo TRANSPORT`; `echo` ends when its stdin is closed.
"""

import ctypes
import dataclasses
import json
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from legato_engine.transfer import ucx
from legato_engine.transfer.link import (
    Connected,
    Fenced,
    Link,
    LinkError,
    PeerDown,
    PutDone,
    PutFailed,
    PutSpan,
    Received,
)

PINGS = 200
PUTS = 8
PUT_BYTES = 16 << 20
HOST = "127.0.0.1"
TIMEOUT = 10.0  # seconds without an event
LONGEST = 40.0  # seconds for the whole measurement

E = TypeVar("E", Connected, Received, PutDone)


@dataclass(frozen=True)
class Loopback:
    """Latency of a control message in seconds (half a median round trip), and bandwidth of puts in bytes per second."""

    latency: float
    bandwidth: float


def measure(transport: str) -> Loopback:
    """Measures one transport. Raises LinkError if it does not work; a crash of UCX only ends the child."""
    try:
        done = subprocess.run(
            _command("measure", transport), capture_output=True, text=True, timeout=LONGEST, check=False
        )
    except subprocess.TimeoutExpired:
        raise LinkError(f"no result within {LONGEST:g} s") from None
    if done.returncode:
        raise LinkError((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])
    return Loopback(**json.loads(done.stdout))


def _command(part: str, transport: str) -> list[str]:
    return [sys.executable, "-m", "legato_cli.machine.loopback", part, transport]


def _measure_here(transport: str) -> Loopback:
    pipe = subprocess.PIPE
    with subprocess.Popen(_command("echo", transport), stdout=pipe, stdin=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise LinkError("the other end could not be started")
            return _measure(transport, json.loads(line))
        finally:
            child.kill()


def echo(transport: str) -> None:
    """Runs the other end: sends every message back until its peer is gone."""
    memory = (ctypes.c_char * PUT_BYTES)()
    link = ucx.open(transport, HOST, ctypes.addressof(memory), PUT_BYTES)
    reach = {"address": link.address.hex(), "rkey": link.rkey.hex(), "base": ctypes.addressof(memory)}
    print(json.dumps(reach), flush=True)
    while True:
        ready = select.select([link.fileno(), sys.stdin], [], [])[0]
        for event in link.poll():
            if isinstance(event, Received):
                link.send(event.connection, event.data)
        if sys.stdin in ready:  # closed: the parent is gone
            return


def _measure(transport: str, reach: dict[str, Any]) -> Loopback:
    memory = (ctypes.c_char * PUT_BYTES)()
    link: Link = ucx.open(transport, HOST, ctypes.addressof(memory), PUT_BYTES)
    try:
        peer = link.connect(bytes.fromhex(reach["address"]))
        _wait(link, Connected)
        latency = statistics.median([_ping(link, peer) for _ in range(PINGS)]) / 2
        link.attach(peer, bytes.fromhex(reach["rkey"]))
        span = PutSpan(ctypes.addressof(memory), reach["base"], PUT_BYTES)
        seconds = statistics.median([_put(link, peer, span, tag) for tag in range(PUTS)])
        return Loopback(latency, PUT_BYTES / seconds)
    finally:
        link.close()


def _ping(link: Link, peer: int) -> float:
    begin = time.perf_counter()
    link.send(peer, b"ping")
    _wait(link, Received)
    return time.perf_counter() - begin


def _put(link: Link, peer: int, span: PutSpan, tag: int) -> float:
    begin = time.perf_counter()
    link.put(peer, [span], tag)
    _wait(link, PutDone)
    return time.perf_counter() - begin


def _wait(link: Link, kind: type[E]) -> E:
    """Waits for the next event of this kind. Raises LinkError."""
    while True:
        for event in link.poll():
            if isinstance(event, kind):
                return event
            if isinstance(event, PeerDown | PutFailed):
                raise LinkError(event.reason)
            if isinstance(event, Fenced):
                raise LinkError("the connection was closed")
        if not select.select([link.fileno()], [], [], TIMEOUT)[0]:
            raise LinkError(f"nothing happened for {TIMEOUT:g} s")


def main(arguments: Sequence[str]) -> int:
    """Runs one of the two processes. Exit code 2: the transport does not work."""
    part, transport = arguments
    try:
        if part == "echo":
            echo(transport)
        else:
            print(json.dumps(dataclasses.asdict(_measure_here(transport))))
    except LinkError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
