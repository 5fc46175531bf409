"""uvicorn's connection as a worker uses it: bounds how many there are and how long one takes to send a request."""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from legato_protocol.tls_server import Secured

MOST: Final = 512  # of one port: two of each gateway, and probes
PATIENCE: Final = 30.0  # seconds between looks; requests here are short
MAX_BODY_BYTES: Final = 65_536  # no request here needs a body: what comes after so much is not even thrown away


class BoundedConnection(Secured, H11Protocol):
    """One connection. `refused` is told why one is closed: it sends nothing, or too much, or is one too many."""

    _body = 0  # bytes that came of one after its head, and have not completed it
    _watch: asyncio.TimerHandle | None = None
    _seen: RequestResponseCycle | None = None  # the request under way at the last look
    since = 0.0  # when it was opened, by the loop's clock

    def __init__(self, refused: Callable[[str], None], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._refused = refused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        own = {self, self.handshake}
        if len(self.connections - own) >= MOST and not make_room(self.connections, self._refused, own):
            self.make_room()
        else:
            self._watch = self.loop.call_later(PATIENCE, self._look)

    @property
    def waits(self) -> bool:
        """True if no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def make_room(self) -> None:
        """Closes the connection."""
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        super().data_received(data)
        self._body = self._body + len(data) if self.cycle is before and self.conn.their_state is h11.SEND_BODY else 0
        if self._body > MAX_BODY_BYTES:
            self._refused("body")
            self.transport.close()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._unwatch()
        super().handle_websocket_upgrade(event)

    def _look(self) -> None:
        """Closes a connection that was waited for since the last look, and sent no whole request."""
        cycle = self.cycle
        if cycle is self._seen and (cycle is None or cycle.more_body or cycle.response_complete):
            self._refused("late")
            self.transport.abort()
            return
        self._seen = cycle
        self._watch = self.loop.call_later(PATIENCE, self._look)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()


def make_room(open: set[Any], refused: Callable[[str], None], newcomer: AbstractSet[Any] = frozenset()) -> bool:
    """Closes the oldest connection without a request under way, so that silent strangers do not keep a gateway out.

    Returns False if every other one has a request; the caller then refuses the newcomer. `refused` counts both.
    """
    refused("connections")
    waiting = [each for each in open - newcomer if getattr(each, "waits", False)]
    if not waiting:
        return False
    oldest = min(waiting, key=lambda each: each.since)
    open.discard(oldest)
    oldest.make_room()
    return True


class Places:
    """Of TLS connections: `open` holds connections and handshakes."""

    def __init__(self, open: set[Any], refused: Callable[[str], None]) -> None:
        self._open = open
        self._count = refused

    def enter(self, connection: Any, port: int | None) -> bool:
        return len(self._open) < MOST or make_room(self._open, self._count)

    def leave(self, connection: Any) -> None:
        """`open` tells."""

    def refused(self, reason: str, text: str) -> None:
        self._count(reason)


def counting(refused: Callable[[str], None]) -> type[asyncio.Protocol]:
    """What uvicorn makes connections with."""
    return cast("type[asyncio.Protocol]", partial(BoundedConnection, refused))
