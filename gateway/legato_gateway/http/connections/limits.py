"""Limits a gateway's connections, and how long it waits for data on them.

When all slots are taken, a connection without a request, which is idle or has not sent a complete head, is closed for a
new one. So silent connections lock nobody out: a new one is refused only if all others are busy.
"""

import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

_log = logging.getLogger(__name__)

CONNECTIONS_FULL: Final = "connections_full"  # drop reason of a client that gets no slot
NO_ROOM: Final = "no_room"  # all slots are taken by requests
MADE_ROOM: Final = "made_room"  # it had no request, and a new connection came
LATE_HEAD: Final = "late_head"
SLOW_BODY: Final = "slow_body"
UNREAD_BODY: Final = "unread_body"  # its request was answered before the end of the body, which continued
PIPELINED: Final = "pipelined"  # more requests than allowed were sent before their answers
NO_DESCRIPTORS: Final = "no_descriptors"  # the event loop silently closes connections that it cannot accept

OWN_PORTS: Final = 32  # slots of each port other than the public one: probes and the operator use few
YOUNG: Final = 1.0  # seconds in which the head of a new connection may still be on its way
BETWEEN_LINES: Final = 10.0  # seconds
OWN_FILES: Final = 256  # descriptors reserved for workers, other ports and files


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds. A body must bring `body_rate` bytes per second, over each `body_window` (0: no minimum).

    If a request is answered before the end of its body, the rest is read for `discard_time`: clients that send
    everything before they read would lose the answer to a reset. Such a connection can be closed for a new one.

    `idle` is the time that a connection is kept between requests. It must exceed the one of clients and load balancers,
    or a request that is sent just then is lost. The most patient load balancers keep them for 600 s.
    """

    most: int = 4096
    head: float = 30.0
    body_rate: int = 1024
    body_window: float = 30.0
    idle: float = 620.0
    discard_time: float = 30.0


def places(most: int, open_files: int) -> int:
    """Returns the maximum number of client connections in a process with `open_files` descriptors."""
    return min(most, open_files - min(OWN_FILES, open_files // 2))


class Waiting(Protocol):
    """A connection that can be closed for a new one."""

    def make_room(self) -> None:
        """Closes it."""


class Connections:
    """Owner of the slots. `public` is the port with `limits.most` of them.

    `count` is called with the reason for each connection that was closed or refused, and `count_refusal` with the drop
    reason of a client's.
    """

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        public: int | None = None,
        count: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        count_refusal: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self._public = public
        self._count = count
        self._clock = clock
        self._count_refusal = count_refusal
        self._open: Counter[int | None] = Counter()
        self._ports: dict[Waiting, int | None] = {}
        self._waiting: dict[int | None, dict[Waiting, float]] = {}  # start of the wait; the longest waiting is first
        self._logged = float("-inf")
        self._unlogged = 0

    def enter(self, connection: Waiting, port: int | None) -> bool:
        """Takes a slot for a connection that waits for a request. Returns False if all are taken."""
        if self._open[port] >= self._most(port) and not self._make_room(port):
            self.refused(NO_ROOM, f"{self._open[port]} connections with a request are open at port {port}")
            if self.is_public(port):
                self._count_refusal(CONNECTIONS_FULL)
            return False
        self._open[port] += 1
        self._ports[connection] = port
        self.waits(connection, True)
        return True

    def leave(self, connection: Waiting) -> None:
        """Frees the slot of a closed connection, if it had one."""
        if connection in self._ports:
            self.waits(connection, False)
            self._open[self._ports.pop(connection)] -= 1

    def waits(self, connection: Waiting, on: bool) -> None:
        """Records that it waits for a request, or has one in progress."""
        if connection not in self._ports:
            return
        waiting = self._waiting.setdefault(self._ports[connection], {})
        waiting.pop(connection, None)
        if on:
            waiting[connection] = self._clock()

    def refused(self, reason: str, text: str) -> None:
        """Counts a closed or refused connection, and logs the first and then at most one per `BETWEEN_LINES`."""
        self._count(reason)
        now = self._clock()
        if now - self._logged < BETWEEN_LINES:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more were closed or refused since the last such line)" if self._unlogged else ""
        _log.warning("connection closed or refused, %s: %s%s", reason, text, more)
        self._logged, self._unlogged = now, 0

    async def check_descriptors(self) -> None:
        """Reports missing file descriptors: without them, connections are closed before they are seen."""
        try:
            os.close(os.dup(0))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.refused(NO_DESCRIPTORS, f"no file descriptor is left: {error.strerror}")

    def is_public(self, port: int | None) -> bool:
        """True if it is the port for clients."""
        return self._public is None or port == self._public

    @property
    def open(self) -> int:
        """Number of open connections at all ports."""
        return sum(self._open.values())

    def check_integrity(self) -> None:
        """Raises AssertionError unless all counts match."""
        assert Counter(self._ports.values()) == +self._open, "connections are miscounted"
        for port, waiting in self._waiting.items():
            assert all(self._ports.get(connection, -1) == port for connection in waiting), "a closed one waits"
            assert list(waiting.values()) == sorted(waiting.values()), "the longest waiting is not first"

    def _most(self, port: int | None) -> int:
        return self.limits.most if self.is_public(port) else OWN_PORTS

    def _make_room(self, port: int | None) -> bool:
        longest, since = next(iter(self._waiting.get(port, {}).items()), (None, 0.0))
        if longest is None or self._clock() - since < YOUNG:
            return False
        self.refused(MADE_ROOM, f"{self._open[port]} connections are open at port {port}; one waits for no request")
        self.leave(longest)
        longest.make_room()
        return True
