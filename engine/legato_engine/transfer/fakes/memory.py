"""A link within one process, with virtual time and injected faults: for tests and simulations.

Puts copy raw memory when they *arrive*, as a network card does: from memory that the sender may have reused too early,
into memory that the receiver may have reused too early. Only a closed endpoint stops them.
"""

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.fakes.virtual_time import VirtualTime
from legato_engine.transfer.link import (
    Connected,
    Fenced,
    LinkEvent,
    PeerDown,
    PutDone,
    PutFailed,
    PutSpan,
    Received,
)


@dataclass(slots=True)
class Faults:
    """Probabilities (0 to 1) of faults of one message or put; `delay` is the longest time that one takes."""

    delay: float = 0.0
    lose_message: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt_message: float = 0.0
    corrupt_put: float = 0.0
    break_connection: float = 0.0  # as a reliable transport does when the network loses packets


@dataclass(slots=True)
class _End:
    """One side of a connection."""

    link: "MemoryLink"
    number: int
    open: bool = True
    attached: bool = False
    last: float = 0.0  # arrival of its latest message, which later ones do not overtake
    puts: dict[int, list[PutSpan]] = field(default_factory=dict)
    other: "_End | None" = None


class Network(VirtualTime):
    """All links that can reach each other, and their common time."""

    def __init__(self, random: Random | None = None, faults: Faults | None = None) -> None:
        super().__init__()
        self.faults = faults or Faults()
        self.random = random or Random(0)
        self.links: dict[bytes, MemoryLink] = {}
        self.arenas: dict[str, ArenaMemory] = {}  # by epoch, of workers that let others read

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.random.random() < probability

    def maybe_damage(self, address: int, length: int) -> None:
        """Changes a bit of memory that was written by a put, or copied, by chance."""
        if self.chance(self.faults.corrupt_put):
            byte = ctypes.c_ubyte.from_address(address + self.random.randrange(length))
            byte.value ^= 1 << self.random.randrange(8)

    def transit(self) -> float:
        return self.random.uniform(0, self.faults.delay) if self.faults.delay else 0.0


class MemoryLink:
    """One worker's link; `name` is its address."""

    transport = "memory"

    def __init__(self, network: Network, name: str, address: int, length: int) -> None:
        """Peers may write to `length` bytes at `address`."""
        self.address = name.encode()
        self.rkey = b"%x:%x" % (address, length)
        self.stopped = False  # as a stopped process: its messages and puts wait, and it reads nothing
        self._network = network
        self._ends: dict[int, _End] = {}
        self._numbers = count(1)
        self._inbox: list[LinkEvent] = []
        self._held: list[Callable[[], None]] = []
        self._wake: int | None = None
        self._span = (address, length)
        network.links[self.address] = self

    def connect(self, address: bytes) -> int:
        end = self._new_end()
        self._network.after(self._network.transit(), lambda: self._arrive_at(address, end))
        return end.number

    def attach(self, connection: int, rkey: bytes) -> None:
        end = self._ends.get(connection)
        if end is None or end.other is None:
            return
        if rkey != end.other.link.rkey:
            self._lose(end, "the remote key does not fit")
        end.attached = True

    def send(self, connection: int, data: bytes) -> None:
        end = self._ends.get(connection)
        if end is None:
            return
        faults, network = self._network.faults, self._network
        if network.chance(faults.break_connection):
            self._lose(end, "the network broke")
            return
        if network.chance(faults.lose_message):
            return
        if network.chance(faults.corrupt_message):
            data = self._damaged(data)
        for _ in range(2 if network.chance(faults.duplicate) else 1):
            arrival = network.now + network.transit()
            if not network.chance(faults.reorder):
                arrival = end.last = max(end.last, arrival)
            network.after(arrival - network.now, lambda: self._deliver(end, data))

    def put(self, connection: int, spans: Sequence[PutSpan], tag: int) -> None:
        end = self._ends.get(connection)
        if end is None or not end.attached:
            self._report(PutFailed(connection, tag, "no connection"))
            return
        end.puts[tag] = list(spans)
        arrival = end.last = max(end.last, self._network.now + self._network.transit())
        self._network.after(arrival - self._network.now, lambda: self._land(end, tag))

    def fence(self, connection: int) -> None:
        end = self._ends.get(connection)
        if end is not None:
            self._close(end, Fenced(connection))

    def poll(self) -> list[LinkEvent]:
        if self.stopped:
            return []
        events, self._inbox = self._inbox, []
        if self._wake is not None and events:
            os.eventfd_read(self._wake)
        return events

    def fileno(self) -> int:
        if self._wake is None:
            self._wake = os.eventfd(1 if self._inbox else 0)
        return self._wake

    def close(self) -> None:
        """Also what the network observes of a killed process."""
        self._network.links.pop(self.address, None)
        for end in list(self._ends.values()):
            self._close(end, Fenced(end.number))
        self._inbox.clear()
        self._held.clear()
        self.stopped = True
        if self._wake is not None:
            os.close(self._wake)
            self._wake = None

    def stop(self) -> None:
        """Like SIGSTOP: nothing is read or written until `resume`."""
        self.stopped = True

    def resume(self) -> None:
        """Like SIGCONT: delayed messages and puts arrive now."""
        self.stopped = False
        held, self._held = self._held, []
        for act in held:
            act()

    def _new_end(self) -> _End:
        end = _End(self, next(self._numbers))
        self._ends[end.number] = end
        return end

    def _arrive_at(self, address: bytes, end: _End) -> None:
        peer = self._network.links.get(address)
        if not end.open:
            return
        if peer is None:
            self._close(end, PeerDown(end.number, "nobody listens there"))
            return
        other = peer._new_end()
        end.other, other.other = other, end
        peer._report(Connected(other.number, accepted=True))
        self._report(Connected(end.number))

    def _deliver(self, end: _End, data: bytes) -> None:
        if self.stopped:
            self._held.append(lambda: self._deliver(end, data))
        elif end.open and end.other is not None and end.other.open:
            end.other.link._report(Received(end.other.number, data))

    def _land(self, end: _End, tag: int) -> None:
        if self.stopped:
            self._held.append(lambda: self._land(end, tag))
            return
        spans = end.puts.pop(tag, None)
        if spans is None or end.other is None:
            return
        if not end.other.open:  # the notice of the connection's end has not arrived here yet
            end.puts[tag] = spans
            return
        for span in spans:
            end.other.link._write(span)
        self._report(PutDone(end.number, tag))

    def _write(self, span: PutSpan) -> None:
        address, length = self._span
        if not address <= span.remote <= span.remote + span.length <= address + length:
            raise ValueError(f"a put of {span.length} bytes beyond the registered memory")
        ctypes.memmove(span.remote, span.local, span.length)
        self._network.maybe_damage(span.remote, span.length)

    def _lose(self, end: _End, reason: str) -> None:
        self._close(end, PeerDown(end.number, reason))

    def _close(self, end: _End, last: LinkEvent) -> None:
        """Closes this end now; the other end notices it later."""
        if not end.open:
            return
        end.open = False
        del self._ends[end.number]
        for tag in list(end.puts):
            self._report(PutFailed(end.number, tag, "the connection is closed"))
        end.puts.clear()
        self._report(last)
        other = end.other
        if other is not None and other.open:
            network = self._network
            network.after(network.transit(), lambda: other.link._hear_of_end(other))

    def _hear_of_end(self, end: _End) -> None:
        if self.stopped:
            self._held.append(lambda: self._hear_of_end(end))
            return
        self._close(end, PeerDown(end.number, "the peer closed the connection"))

    def _report(self, event: LinkEvent) -> None:
        self._inbox.append(event)
        if self._wake is not None:
            os.eventfd_write(self._wake, 1)

    def _damaged(self, data: bytes) -> bytes:
        spot = self._network.random.randrange(len(data))
        return data[:spot] + bytes([data[spot] ^ (1 << self._network.random.randrange(8))]) + data[spot + 1 :]
