"""uvicorn as a worker uses it: on a socket that is bound already, leaving signals and logs to the worker."""

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from legato_engine.server import http_protocol
from legato_protocol.flags import SettingsError
from legato_protocol.stream import MAX_FRAME_BYTES


class _Protocol(WebSocketsSansIOProtocol):
    """Gives the application a way to drop a connection whose peer does not read: a farewell would wait for it."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if self.response.status_code == 101:
            self.scope["state"]["abort"] = self.transport.abort


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(flag: str, host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises SettingsError, which names `flag`."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise SettingsError(f"{flag} is {port}, but {host}:{port} cannot be listened on: {reason}") from None


def server(app: ASGIApp, refused: Callable[[str], None]) -> uvicorn.Server:
    """Serve with `serve(sockets=[…])`; ends after `should_exit` is set. `refused` counts connections."""
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
    return _Server(config)


def announce(path: str, ports: dict[str, int]) -> None:
    """Write `ports` into the file, whole or not at all."""
    target = Path(path)
    with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
        json.dump(ports, file)
    Path(file.name).replace(target)
