"""How fast a transport is on this machine, measured over the loopback: for `legato doctor`."""

import select
import time
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from legato_engine.transfer import ucx
from legato_engine.transfer.link import Connected, Link, LinkError, LinkEvent, PutDone, Received, Span

_PATIENCE = 10.0
_PINGS = 200
_PUTS = 8
_PUT_BYTES = 16 << 20
_Wanted = TypeVar("_Wanted", Connected, PutDone, Received)


@dataclass(frozen=True, slots=True)
class Measured:
    """`latency`: seconds for a small message one way (median); `bandwidth`: bytes per second of a 16 MiB put (best)."""

    label: str
    latency: float
    bandwidth: float


def measure(transport: str) -> Measured:
    """Opens two links in this process and times them. Raises LinkError if the transport does not work here."""
    ours, theirs = np.ones(_PUT_BYTES, np.uint8), np.zeros(_PUT_BYTES, np.uint8)
    a = ucx.open(transport, "127.0.0.1", ours.ctypes.data, _PUT_BYTES)
    try:
        b = ucx.open(transport, "127.0.0.1", theirs.ctypes.data, _PUT_BYTES)
        try:
            at_a = a.connect(b.address)
            at_b = _wait(b, Connected).connection
            latency = _time_pings(a, at_a, b, at_b)
            a.attach(at_a, b.rkey)
            bandwidth = _time_puts(a, at_a, Span(ours.ctypes.data, theirs.ctypes.data, _PUT_BYTES))
        finally:
            b.close()
    finally:
        a.close()
    return Measured(a.transport, latency, bandwidth)


def _time_pings(a: Link, at_a: int, b: Link, at_b: int) -> float:
    times = []
    for _ in range(_PINGS):
        start = time.perf_counter()
        a.send(at_a, b"ping")
        _wait(b, Received)
        b.send(at_b, b"pong")
        _wait(a, Received)
        times.append((time.perf_counter() - start) / 2)
    return sorted(times)[_PINGS // 2]


def _time_puts(a: Link, at_a: int, span: Span) -> float:
    times = []
    for tag in range(_PUTS):
        start = time.perf_counter()
        a.put(at_a, [span], tag)
        _wait(a, PutDone)
        times.append(time.perf_counter() - start)
    return span.length / min(times)


def _wait(link: Link, kind: type[_Wanted]) -> _Wanted:
    """The next event of this kind; others before it (a `Connected` of the own side) are of no interest."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        select.select([link.fileno()], [], [], _PATIENCE)
        events: list[LinkEvent] = link.poll()
        for event in events:
            if isinstance(event, kind):
                return event
    raise LinkError(f"{link.transport} did not answer over the loopback for {_PATIENCE} s")
