"""A TLS port: accepts connections and bounds their handshakes."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

LATE_HANDSHAKE: Final = "late_handshake"
BAD_HANDSHAKE: Final = "bad_handshake"  # plain HTTP, or no version of TLS in common
LAST_FLUSH: Final = 5.0  # seconds to flush a connection that is being closed
ACCEPT_BATCH: Final = 128  # connections accepted before the loop serves others
AGAIN: Final = 1.0  # seconds until the next attempt when no descriptor is left
EARLY: Final = 0.01  # seconds by which a loop's clock may lag behind its timers: uvloop's counts whole milliseconds


class Certificate(Protocol):
    """The certificate that a server presents."""

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new connections."""
        ...


class Places(Protocol):
    """A bounded set of connections."""

    def enter(self, connection: Any, port: int | None) -> bool:
        """Adds a connection; false if there is no place for it."""
        ...

    def leave(self, connection: Any) -> None:
        """Removes a connection."""
        ...

    def refused(self, reason: str, text: str) -> None:
        """Counts a handshake that failed."""
        ...


class Secured(asyncio.Protocol):
    """The protocol of a connection whose handshake is complete."""

    handshake: "Handshake | None" = None  # whose place this connection takes over


class TLSServer:
    """Accepts connections at `listener`; a protocol of `make` gets each connection after its handshake.

    The event loops' own servers report a connection only then, so endless handshakes would be neither counted nor
    bounded. Starting TLS on an accepted connection loses its first bytes in uvloop. Here each connection takes one of
    `places` from the start, as one without a request head, and is in `pending`, which a shutdown ends.
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
        """Prepares the server; `patience` is the limit of a handshake in seconds."""
        self._listener = listener
        self._certificate = certificate
        self._places = places
        self._pending = pending
        self._make = make
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Starts to accept connections."""
        self._listener.setblocking(False)
        self._again = None
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stops accepting connections. Running handshakes continue."""
        if self._again is not None:
            self._again.cancel()
        elif self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener)

    async def wait_closed(self) -> None:
        """Does nothing: part of an event loop's server; a shutdown waits for `pending`."""

    def _accept(self) -> None:
        for _ in range(ACCEPT_BATCH):
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
                connection.close()  # no error can be sent before the handshake


class Handshake:
    """A running handshake. It has a place, which the connection's protocol takes over."""

    waits = True  # for a request head

    def __init__(self, connection: socket.socket, places: Places, pending: set[Any], patience: float) -> None:
        self._connection = connection
        self._places = places
        self._pending = pending
        self._patience = patience
        self.since = asyncio.get_running_loop().time()

    def start(self, context: ssl.SSLContext, protocol: Secured) -> None:
        """Starts the handshake of a connection for `protocol`."""
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
