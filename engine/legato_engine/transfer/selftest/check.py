"""The self-test: blocks must arrive unchanged and only at their targets, and a put after a fence must change nothing.

It works with any two links, each with its own memory. It does not use UCX: `child` opens the links.
"""

import select
import time
from collections.abc import Callable
from typing import TypeVar

from legato_engine.transfer.blocks.puts import spans
from legato_engine.transfer.link import (
    Fenced,
    Link,
    LinkError,
    LinkEvent,
    PeerDown,
    PutDone,
    PutFailed,
    Received,
)
from legato_engine.transfer.selftest.blocks import TrialBlocks

PATIENCE = 10.0  # seconds for each step; RDMA gives up an unresponsive peer after a few seconds
_PAUSE = 0.2  # seconds between polls, in case a link's descriptor misses an event
E = TypeVar("E", Received, PutDone, Fenced)
_FIRST, _IN_FLIGHT, _LATE = range(3)  # tags


class SelfTest:
    """One run of the test. `run` raises LinkError with the failure."""

    def __init__(
        self, sender: Link, receiver: Link, source: TrialBlocks, target: TrialBlocks, patience: float = PATIENCE
    ) -> None:
        """`sender` reads `source`; peers write to `target` through `receiver`. Both have the same number of blocks."""
        self._events = {sender: list[LinkEvent](), receiver: list[LinkEvent]()}  # reported and not yet consumed
        self._sender, self._receiver = sender, receiver
        self._source, self._target = source, target
        self._patience = patience
        self._closing = False  # from then on the connection may end

    def run(self) -> None:
        self._connect()
        self._write()
        self._fence()

    def _connect(self) -> None:
        """Sends messages in both directions before the first put, as in hand-offs."""
        self._there = self._sender.connect(self._receiver.address)
        self._sender.send(self._there, b"hello")
        self._here = self._wait(self._receiver, Received, "a message").connection
        self._receiver.send(self._here, b"hello")
        self._wait(self._sender, Received, "an answer")
        self._sender.attach(self._there, self._receiver.rkey)

    def _write(self) -> None:
        """Writes all blocks but the last to the targets of all but the first, in reverse order."""
        self._source.fill(1)
        self._target.fill(2)
        sent, before = self._source.sums(), self._target.sums()
        self._put(_FIRST)
        self._wait(self._sender, PutDone, "the end of a put")
        self._sender.send(self._there, b"written")
        self._wait(self._receiver, Received, "a message after a put")
        if self._target.sums() != [before[0], *reversed(sent[:-1])]:
            raise LinkError("blocks did not arrive as they were sent")

    def _fence(self) -> None:
        """Closes the endpoint while a put is in flight, and starts another put afterwards."""
        self._source.fill(3)
        self._put(_IN_FLIGHT)
        self._closing = True
        self._receiver.fence(self._here)
        self._wait(self._receiver, Fenced, "the end of an endpoint that was closed")
        self._target.fill(4)
        left = self._target.sums()
        self._put(_LATE)
        self._end_puts()
        if self._target.sums() != left:
            raise LinkError("a put changed memory after the receiver had closed its endpoint")

    def _end_puts(self) -> None:
        """Waits until both puts have ended. If the sender does not notice the close, it closes its end, too."""

        def ended() -> bool:
            events = self._events[self._sender]
            return {_IN_FLIGHT, _LATE} <= {event.tag for event in events if isinstance(event, PutDone | PutFailed)}

        if not self._until(ended):
            self._sender.fence(self._there)
            if not self._until(ended):
                raise LinkError(f"puts did not end within {self._patience:g} s after their connection was closed")

    def _put(self, tag: int) -> None:
        source, target = self._source, self._target
        blocks, places = range(source.count - 1), range(target.count - 1, 0, -1)
        self._sender.put(self._there, spans(blocks, source.address, places, target.address, source.block_bytes), tag)

    def _wait(self, link: Link, kind: type[E], what: str) -> E:
        """Waits for an event of this kind and consumes the oldest."""
        events = self._events[link]
        if not self._until(lambda: any(isinstance(event, kind) for event in events)):
            raise LinkError(f"{what} did not come within {self._patience:g} s")
        first = next(event for event in events if isinstance(event, kind))
        events.remove(first)
        return first

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Waits for a condition; False after `patience` seconds. Raises LinkError if the connection breaks early."""
        give_up = time.monotonic() + self._patience
        while not condition():
            left = give_up - time.monotonic()
            if left <= 0:
                return False
            select.select([link.fileno() for link in self._events], [], [], min(left, _PAUSE))
            for link, events in self._events.items():
                events += link.poll()
                if not self._closing:
                    _check_open(events)
        return True


def _check_open(events: list[LinkEvent]) -> None:
    """Raises LinkError if the connection has ended."""
    for event in events:
        if isinstance(event, PeerDown | PutFailed):
            raise LinkError(event.reason)
