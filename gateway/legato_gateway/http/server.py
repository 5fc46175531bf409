"""The gateway's listeners, and an HTTP server that stops without a client noticing.

A gateway either binds its own port or inherits a listening socket. Processes that share an inherited one replace each
other without a gap: connections wait in the shared queue until some process accepts them.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from ssl import SSLContext
from typing import cast

import uvicorn

from legato_gateway.http.connections.protocol import BoundedProtocol
from legato_gateway.settings import GatewaySettings
from legato_protocol import names
from legato_protocol.process import listening
from legato_protocol.process.followed_files import INTERVAL, FollowedFiles
from legato_protocol.security.tls_files import server_context
from legato_protocol.security.tls_server import TLSServer
from legato_protocol.settings.flags import SettingsError

PUBLIC = "http"
HEALTH = "health"
BACKLOG = 2048
LINGER = 1.0  # seconds in which requests already sent when this process stopped accepting are still answered
POLL = 0.05  # seconds


class PublicCertificate(FollowedFiles[SSLContext]):
    """`context` is for new connections; open connections keep theirs.

    Each valid pair of files gets a new context, so that an inconsistent pair leaves nothing half loaded.
    """

    def __init__(self, certificate: Path, key: Path, interval: float = INTERVAL) -> None:
        """Raises InvalidFile."""
        paths = (certificate, key)
        super().__init__("TLS certificate and key", paths, lambda *_: server_context(certificate, key), interval)

    @property
    def context(self) -> SSLContext:
        """The newest context."""
        return self.value


@dataclass(frozen=True)
class Listeners:
    """`public` is for clients; `own` are the others by name, for probes and the operator."""

    public: socket.socket
    own: Mapping[str, socket.socket]

    @property
    def named(self) -> dict[str, socket.socket]:
        return {PUBLIC: self.public, **self.own}

    @property
    def sockets(self) -> list[socket.socket]:
        return list(self.named.values())

    @property
    def ports(self) -> dict[str, int]:
        """The port of each listener, for the announcement."""
        return {name: listener.getsockname()[1] for name, listener in self.named.items()}


def listeners(settings: GatewaySettings) -> Listeners:
    """Returns the sockets of these settings. Raises SettingsError if a port is taken or an address is not local."""
    if settings.listen_fd is not None:
        public = _inherited(settings.listen_fd)
    else:
        public = _bound(settings.host, settings.port, "--port")
    ports = {HEALTH: settings.health_port}
    if settings.plain_control:
        ports[names.CONTROL] = settings.control_port
    if settings.internal_tls_folder is not None:
        ports[names.CONTROL_TLS] = settings.control_tls_port
    own = {name: _bound(settings.host, port, f"--{name}-port") for name, port in ports.items() if port is not None}
    return Listeners(public, own)


def _bound(host: str, port: int, flag: str) -> socket.socket:
    try:
        return listening.listen(host, port, BACKLOG)
    except OSError as error:
        why = error.strerror or str(error)
        raise SettingsError(f"--host {host} {flag} {port}: cannot listen there: {why}") from None


def _inherited(number: int) -> socket.socket:
    try:
        listener = socket.socket(fileno=number)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise SettingsError(f"--listen-fd {number}: {error.strerror}") from None
    if not listens:
        raise SettingsError(f"--listen-fd {number}: a socket, but none that listens")
    return listener


class Server(uvicorn.Server):
    """Announces itself once it serves. The caller handles signals, by setting `should_exit`."""

    def __init__(
        self,
        config: uvicorn.Config,
        listeners: Listeners,
        announced: Path | None,
        linger: float,
        tls: Mapping[str, Callable[..., TLSServer]] | None = None,
    ) -> None:
        """`tls` maps names of ports with TLS to functions that create their servers."""
        super().__init__(config)
        self._tls = tls or {}
        self._listeners = listeners
        self._announced = announced
        self._linger = linger

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        ports, named = self._listeners.ports, self._listeners.named
        secured = [named[name] for name in self._tls]
        await super().startup([listener for listener in sockets or () if listener not in secured])
        protocol_class = cast("Callable[..., BoundedProtocol]", self.config.http_protocol_class)
        make = partial(protocol_class, self.config, self.server_state, self.lifespan.state)
        for name, server in self._tls.items():
            tls = server(named[name], pending=self.server_state.connections, make=make)
            tls.start()
            self.servers.append(cast("asyncio.Server", tls))
        if self._announced is not None:
            _announce(self._announced, ports)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops accepting; answers requests on open connections with `connection: close`; then closes idle ones.

        uvicorn would close a connection whose first request is still on its way.
        """
        for server in self.servers:
            server.close()
        for listener in sockets or ():
            listener.close()
        self.server_state.default_headers = [*self.server_state.default_headers, (b"connection", b"close")]
        until = asyncio.get_running_loop().time() + self._linger
        while self.server_state.connections and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110 - no event
            await asyncio.sleep(POLL)
        await super().shutdown(sockets)


def _announce(path: Path, ports: dict[str, int]) -> None:
    """Writes the ports atomically."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(ports))
    draft.replace(path)
