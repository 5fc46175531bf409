"""How many connections a gateway keeps, and for how long it waits for what they send.

A connection without a request under way, which is idle or has not sent a whole head, makes room for a new one when all
places are taken. So silent connections lock nobody out, and only where all are busy a new one is refused.
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

NO_ROOM: Final = "no_room"  # all places are taken by requests
MADE_ROOM: Final = "made_room"  # it had no request, and a new connection came
LATE_HEAD: Final = "late_head"
SLOW_BODY: Final = "slow_body"
UNREAD_BODY: Final = "unread_body"  # its request was answered before its end, and it went on
NO_DESCRIPTORS: Final = "no_descriptors"  # the event loop closes what it cannot accept without a word

OWN_PORTS: Final = 32  # places of each other port than the public one: probes and the operator use few
YOUNG: Final = 1.0  # seconds in which the head of a new connection may still be on its way
BETWEEN_LINES: Final = 10.0  # seconds
OWN_FILES: Final = 256  # descriptors that are not for clients: workers, other ports, files


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Times in seconds. A body has to bring `body_rate` bytes per second, over each `body_window`.

    Of a body whose request was answered before its end, `discard` bytes more are read in `discard_time`: clients that
    send all before they read lose the answer when the connection is reset under them. Such a connection makes room.

    `idle` is how long a connection is kept between requests: longer than clients and load balancers keep theirs, or
    else a request is lost that is sent just then. The most patient load balancers keep them for 600 s.
    """

    most: int = 4096
    head: float = 30.0
    body_rate: int = 1024
    body_window: float = 30.0
    idle: float = 620.0
    discard: int = 128 << 20
    discard_time: float = 30.0


def places(most: int, open_files: int) -> int:
    """How many connections of clients there may be in a process with so many descriptors."""
    return min(most, open_files - min(OWN_FILES, open_files // 2))


class Waiting(Protocol):
    """A connection that can make room."""

    def make_room(self) -> None:
        """Closes it."""


class Connections:
    """Owner of the places. `public` is the port with `limits.most` of them; `count` is told each reason for which one
    was closed or not let in."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        public: int | None = None,
        count: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self._public = public
        self._count = count
        self._clock = clock
        self._open: Counter[int | None] = Counter()
        self._ports: dict[Waiting, int | None] = {}
        self._waiting: dict[int | None, dict[Waiting, float]] = {}  # since when; the longest waiting is first
        self._logged = float("-inf")
        self._unlogged = 0

    def enter(self, connection: Waiting, port: int | None) -> bool:
        """Whether it has a place now. It waits for a request."""
        if self._open[port] >= self._most(port) and not self._make_room(port):
            self.refused(NO_ROOM, f"{self._open[port]} connections with a request are open at port {port}")
            return False
        self._open[port] += 1
        self._ports[connection] = port
        self.waits(connection, True)
        return True

    def leave(self, connection: Waiting) -> None:
        """It is closed. One that never had a place is no error."""
        if connection in self._ports:
            self.waits(connection, False)
            self._open[self._ports.pop(connection)] -= 1

    def waits(self, connection: Waiting, on: bool) -> None:
        """It waits for a request, or has one under way."""
        if connection not in self._ports:
            return
        waiting = self._waiting.setdefault(self._ports[connection], {})
        waiting.pop(connection, None)
        if on:
            waiting[connection] = self._clock()

    def refused(self, reason: str, text: str) -> None:
        """Counts it; a line is logged for the first, and then at most one in a while."""
        self._count(reason)
        now = self._clock()
        if now - self._logged < BETWEEN_LINES:
            self._unlogged += 1
            return
        more = f" ({self._unlogged} more were closed or refused since the last such line)" if self._unlogged else ""
        _log.warning("connection closed or refused, %s: %s%s", reason, text, more)
        self._logged, self._unlogged = now, 0

    async def check_descriptors(self) -> None:
        """Tells of it if this process has no descriptor left: connections are then closed before they are seen."""
        try:
            os.close(os.dup(0))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.refused(NO_DESCRIPTORS, f"no file descriptor is left: {error.strerror}")

    def is_public(self, port: int | None) -> bool:
        """Whether it is the one for clients."""
        return self._public is None or port == self._public

    @property
    def open(self) -> int:
        """At all ports."""
        return sum(self._open.values())

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books agree."""
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
