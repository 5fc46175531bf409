"""uvicorn on a socket that is already bound, without its signal handlers and logs."""

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from legato_engine.server import http_protocol
from legato_protocol.process import listening
from legato_protocol.security.tls_server import Certificate, Secured, TLSServer
from legato_protocol.settings.flags import SettingsError
from legato_protocol.wire.messages import MAX_FRAME_BYTES


class _Protocol(WebSocketsSansIOProtocol):
    """Lets the application abort a connection whose peer does not read: a close would wait for it."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["state"]["abort"] = self.transport.abort


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _TLSServer(_Server):
    """A server whose sockets require TLS. A handshake counts as a connection from its beginning."""

    def __init__(self, config: uvicorn.Config, certificate: Certificate, refused: Callable[[str], None]) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._limit = http_protocol.TLSLimit(self.server_state.connections, refused)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        of_uvicorn = cast("Callable[..., Secured]", self.config.http_protocol_class)
        make = partial(of_uvicorn, self.config, self.server_state, self.lifespan.state)
        pending: set[Any] = self.server_state.connections
        for listener in sockets or ():
            tls = TLSServer(listener, self._certificate, self._limit, pending, make, http_protocol.PATIENCE)
            tls.start()
            self.servers.append(cast("asyncio.Server", tls))


def bind(flag: str, host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises SettingsError, which names `flag`."""
    try:
        return listening.listen(host, port, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise SettingsError(f"{flag} is {port}, but {host}:{port} cannot be listened on: {reason}") from None


def server(app: ASGIApp, refused: Callable[[str], None], certificate: Certificate | None = None) -> uvicorn.Server:
    """A server to run with `serve(sockets=[…])`, with TLS if there is a certificate.

    It ends after `should_exit` is set. `refused` counts refused connections.
    """
    config = uvicorn.Config(
        app,
        http=http_protocol.counting(refused),
        ws=_Protocol,
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    return _Server(config) if certificate is None else _TLSServer(config, certificate, refused)


def announce(path: str, ports: dict[str, int]) -> None:
    """Writes `ports` to the file atomically."""
    target = Path(path)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        json.dump(ports, file)
    Path(file.name).replace(target)
