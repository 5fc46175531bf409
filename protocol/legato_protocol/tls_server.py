"""A port with TLS: connections from being accepted until their handshake is over."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

LATE_HANDSHAKE: Final = "late_handshake"
BAD_HANDSHAKE: Final = "bad_handshake"  # plain HTTP, or no version of TLS in common
LAST_FLUSH: Final = 5.0  # seconds for what was written to a connection that is closed
AT_ONCE: Final = 128  # connections that are accepted before others get a turn
AGAIN: Final = 1.0  # seconds until the next attempt when no descriptor is left
EARLY: Final = 0.01  # seconds by which a loop's clock may be behind its timers: uvloop's counts whole milliseconds


class Certificate(Protocol):
    """What a server shows."""

    @property
    def context(self) -> ssl.SSLContext:
        """For new connections."""
        ...


class Places(Protocol):
    """How many connections there may be."""

    def enter(self, connection: Any, port: int | None) -> bool:
        """Whether it has a place now."""
        ...

    def leave(self, connection: Any) -> None:
        """It needs none any more."""
        ...

    def refused(self, reason: str, text: str) -> None:
        """Counts a handshake that failed."""
        ...


class Secured(asyncio.Protocol):
    """Of a connection whose handshake is over, if it has a place of its own."""

    handshake: "Handshake | None" = None  # it gives its place to this connection


class TLSServer:
    """Accepts at `listener`; what `make` makes gets a connection once its handshake is over.

    The event loops' own servers tell of a connection only then, so that handshakes which never end would be neither
    counted nor bounded. Starting TLS on a connection loses its first bytes in uvloop. Here each has a place among
    `places` from the start, as one that has not sent a head, and is in `pending`, which is asked to end.
    """

    def __init__(
        self,
        listener: socket.socket,
        certificate: Certificate,
        places: Places,
        pending: set[Any],
        make: Callable[[], Secured],
        patience: float,
    ) -> None:
        """`patience` is how long a handshake may take, in seconds."""
        self._listener = listener
        self._certificate = certificate
        self._places = places
        self._pending = pending
        self._make = make
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begins to accept."""
        self._listener.setblocking(False)
        self._again = None
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Accepts no more. Handshakes go on."""
        if self._again is not None:
            self._again.cancel()
        elif self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """As an event loop's server has it; who ends waits for `pending`."""

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:
                self._loop.remove_reader(self._listener)
                self._again = self._loop.call_later(AGAIN, self.start)
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            handshake = Handshake(connection, self._places, self._pending, self._patience)
            if self._places.enter(handshake, connection.getsockname()[1]):
                handshake.start(self._certificate.context, self._make())
            else:
                connection.close()  # nothing can be said before TLS


class Handshake:
    """One of them. It has a place, which the connection's protocol takes over."""

    waits = True  # for a request

    def __init__(self, connection: socket.socket, places: Places, pending: set[Any], patience: float) -> None:
        self._connection = connection
        self._places = places
        self._pending = pending
        self._patience = patience
        self.since = asyncio.get_running_loop().time()

    def start(self, context: ssl.SSLContext, protocol: Secured) -> None:
        """Begins it; `protocol` is made for the connection."""
        protocol.handshake = self
        self._pending.add(self)
        self._task = asyncio.create_task(self._run(context, protocol))

    def make_room(self) -> None:
        """Closes the connection."""
        self._task.cancel()

    shutdown = make_room  # as uvicorn calls it when it ends

    async def _run(self, context: ssl.SSLContext, protocol: Secured) -> None:
        loop, limit = asyncio.get_running_loop(), self._patience
        due = loop.time() + limit
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                self._connection,
                ssl=context,
                ssl_handshake_timeout=limit,
                ssl_shutdown_timeout=LAST_FLUSH,
            )
        except OSError as error:
            if loop.time() >= due - EARLY:
                self._places.refused(LATE_HANDSHAKE, f"a TLS handshake was not over within {limit:g} s")
            elif isinstance(error, ssl.SSLError):
                self._places.refused(BAD_HANDSHAKE, f"a TLS handshake failed: {error.reason or error}")
        finally:
            self._pending.discard(self)
            self._places.leave(self)
