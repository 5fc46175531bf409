"""uvicorn's HTTP connection with limits: the number of connections, and the time and size of a request."""

import asyncio
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from legato_protocol.security.tls_server import Secured

MOST: Final = 512  # connections of one port: two of each gateway, and probes
PATIENCE: Final = 30.0  # seconds between checks of a connection; requests here are short
MAX_BODY_BYTES: Final = 65_536  # no request here needs a body; a longer one closes the connection


class BoundedConnection(Secured, H11Protocol):
    """One connection. Calls `refused` with the reason when it is closed for a limit."""

    _body = 0  # bytes of an incomplete body
    _watch: asyncio.TimerHandle | None = None
    _seen: RequestResponseCycle | None = None  # the current request at the last check
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
            self._watch = self.loop.call_later(PATIENCE, self._check)

    @property
    def waits(self) -> bool:
        """True if no request is being processed."""
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

    def _check(self) -> None:
        """Closes a connection that has not completed a request since the last check."""
        cycle = self.cycle
        if cycle is self._seen and (cycle is None or cycle.more_body or cycle.response_complete):
            self._refused("late")
            self.transport.abort()
            return
        self._seen = cycle
        self._watch = self.loop.call_later(PATIENCE, self._check)

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()


def make_room(open: set[Any], refused: Callable[[str], None], newcomer: AbstractSet[Any] = frozenset()) -> bool:
    """Closes the oldest connection without a request, so that idle strangers do not keep a gateway out.

    Returns False if all others have a request; the caller then refuses the newcomer. `refused` counts both cases.
    """
    refused("connections")
    waiting = [each for each in open - newcomer if getattr(each, "waits", False)]
    if not waiting:
        return False
    oldest = min(waiting, key=lambda each: each.since)
    open.discard(oldest)
    oldest.make_room()
    return True


class TLSLimit:
    """The limit of TLS connections. `open` has connections and handshakes."""

    def __init__(self, open: set[Any], refused: Callable[[str], None]) -> None:
        self._open = open
        self._count = refused

    def enter(self, connection: Any, port: int | None) -> bool:
        return len(self._open) < MOST or make_room(self._open, self._count)

    def leave(self, connection: Any) -> None:
        """Nothing to do: `open` is updated elsewhere."""

    def refused(self, reason: str, text: str) -> None:
        self._count(reason)


def counting(refused: Callable[[str], None]) -> type[asyncio.Protocol]:
    """The connection class for uvicorn, which counts refusals."""
    return cast("type[asyncio.Protocol]", partial(BoundedConnection, refused))
