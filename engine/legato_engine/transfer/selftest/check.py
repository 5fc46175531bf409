"""What a transport has to show: blocks arrive as they are, where they belong and nowhere else, and what is put after
the receiver has closed its endpoint changes nothing.

Over any two links, each with memory of its own. No UCX: `child` opens the links.
"""

import select
import time
from collections.abc import Callable
from typing import TypeVar

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
from legato_engine.transfer.puts import spans
from legato_engine.transfer.selftest.blocks import TrialBlocks

PATIENCE = 10.0  # seconds for each step; RDMA gives up a peer that does not answer after a few
_PAUSE = 0.2  # seconds between looks, should a link's descriptor miss something
E = TypeVar("E", Received, PutDone, Fenced)
_FIRST, _IN_FLIGHT, _LATE = range(3)  # tags


class SelfTest:
    """One try. `run` raises LinkError with what went wrong."""

    def __init__(
        self, sender: Link, receiver: Link, source: TrialBlocks, target: TrialBlocks, patience: float = PATIENCE
    ) -> None:
        """`sender` reaches the memory of `source`, and `receiver` that of `target`; both have as many blocks."""
        self._links = {sender: list[LinkEvent](), receiver: list[LinkEvent]()}  # what each has told
        self._sender, self._receiver = sender, receiver
        self._source, self._target = source, target
        self._patience = patience
        self._closing = False  # the connection is to end from here on

    def run(self) -> None:
        self._connect()
        self._write()
        self._fence()

    def _connect(self) -> None:
        """Messages go both ways before anything is put, as in hand-offs."""
        self._there = self._sender.connect(self._receiver.address)
        self._sender.send(self._there, b"hello")
        self._here = self._wait(self._receiver, Received, "a message").connection
        self._receiver.send(self._here, b"hello")
        self._wait(self._sender, Received, "an answer")
        self._sender.attach(self._there, self._receiver.rkey)

    def _write(self) -> None:
        """All blocks but the last go to the places of all but the first, in another order."""
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
        """A put is on its way when the endpoint is closed, and another one follows."""
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
        """Neither of the two puts is under way any more. A sender that did not notice closes its end, too."""

        def ended() -> bool:
            told = self._links[self._sender]
            return {_IN_FLIGHT, _LATE} <= {event.tag for event in told if isinstance(event, PutDone | PutFailed)}

        if not self._until(ended):
            self._sender.fence(self._there)
            if not self._until(ended):
                raise LinkError(f"puts did not end within {self._patience:g} s after their connection was closed")

    def _put(self, tag: int) -> None:
        source, target = self._source, self._target
        blocks, places = range(source.count - 1), range(target.count - 1, 0, -1)
        self._sender.put(self._there, spans(blocks, source.address, places, target.address, source.block_bytes), tag)

    def _wait(self, link: Link, kind: type[E], what: str) -> E:
        """The oldest event of a kind that this link has told and nobody has waited for."""
        told = self._links[link]
        if not self._until(lambda: any(isinstance(event, kind) for event in told)):
            raise LinkError(f"{what} did not come within {self._patience:g} s")
        found = next(event for event in told if isinstance(event, kind))
        told.remove(found)
        return found

    def _until(self, condition: Callable[[], bool]) -> bool:
        """Whether it came true in time. Raises LinkError for a connection that breaks before it is to end."""
        give_up = time.monotonic() + self._patience
        while not condition():
            left = give_up - time.monotonic()
            if left <= 0:
                return False
            select.select([link.fileno() for link in self._links], [], [], min(left, _PAUSE))
            for link, told in self._links.items():
                told += link.poll()
                if not self._closing:
                    _check_open(told)
        return True


def _check_open(told: list[LinkEvent]) -> None:
    """Raises LinkError."""
    for event in told:
        if isinstance(event, PeerDown | PutFailed):
            raise LinkError(event.reason)
