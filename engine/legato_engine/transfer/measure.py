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
    """Opens two links in this process and times them, for 10 seconds at most.

    Raises LinkError if the transport does not work here."""
    deadline = time.monotonic() + _PATIENCE
    ours, theirs = np.ones(_PUT_BYTES, np.uint8), np.zeros(_PUT_BYTES, np.uint8)
    a = ucx.open(transport, "127.0.0.1", ours.ctypes.data, _PUT_BYTES)
    try:
        b = ucx.open(transport, "127.0.0.1", theirs.ctypes.data, _PUT_BYTES)
        try:
            at_a = a.connect(b.address)
            at_b = _wait(b, Connected, deadline).connection
            latency = _time_pings(a, at_a, b, at_b, deadline)
            a.attach(at_a, b.rkey)
            bandwidth = _time_puts(a, at_a, Span(ours.ctypes.data, theirs.ctypes.data, _PUT_BYTES), deadline)
        finally:
            b.close()
    finally:
        a.close()
    return Measured(a.transport, latency, bandwidth)


def _time_pings(a: Link, at_a: int, b: Link, at_b: int, deadline: float) -> float:
    times = []
    for _ in range(_PINGS):
        start = time.perf_counter()
        a.send(at_a, b"ping")
        _wait(b, Received, deadline)
        b.send(at_b, b"pong")
        _wait(a, Received, deadline)
        times.append((time.perf_counter() - start) / 2)
    return sorted(times)[_PINGS // 2]


def _time_puts(a: Link, at_a: int, span: Span, deadline: float) -> float:
    times = []
    for tag in range(_PUTS):
        start = time.perf_counter()
        a.put(at_a, [span], tag)
        _wait(a, PutDone, deadline)
        times.append(time.perf_counter() - start)
    return span.length / min(times)


def _wait(link: Link, kind: type[_Wanted], deadline: float) -> _Wanted:
    """The next event of this kind; others before it (a `Connected` of the own side) are of no interest."""
    while (left := deadline - time.monotonic()) > 0:
        select.select([link.fileno()], [], [], left)
        events: list[LinkEvent] = link.poll()
        for event in events:
            if isinstance(event, kind):
                return event
    raise LinkError(f"{link.transport} did not answer over the loopback for {_PATIENCE} s")
