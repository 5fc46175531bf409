"""The core's end of the socket pair: sends whole frames from any thread, receives without blocking."""

import socket
import threading

from legato_engine.core import frames
from legato_engine.core.frames import FromCore, Splitter, ToCore

_CHUNK = 1 << 18


class ServerGone(Exception):
    """The server closed its end; the core exits."""


class ServerChannel:
    """Frames to and from the server."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._splitter = Splitter()
        self._sending = threading.Lock()  # the heartbeat's thread sends, too

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: FromCore) -> None:
        """Sends a frame; blocks while the server's buffer is full. Raises ServerGone."""
        data = frames.encode(frame)
        try:
            with self._sending:
                self._socket.sendall(data)
        except OSError as error:
            raise ServerGone(str(error)) from None

    def wait(self) -> ToCore:
        """Blocks until the next frame has come and returns it; used for the start. Raises ServerGone."""
        while True:
            if received := self._read(0):
                assert len(received) == 1, "the server waits for `Ready` before it sends more"
                return received[0]

    def receive(self) -> list[ToCore]:
        """Returns all complete frames without blocking. Raises ServerGone."""
        received: list[ToCore] = []
        while True:
            try:
                received += self._read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return received

    def _read(self, flags: int) -> list[ToCore]:
        try:
            data = self._socket.recv(_CHUNK, flags)
        except BlockingIOError:
            raise
        except OSError as error:
            raise ServerGone(str(error)) from None
        if not data:
            raise ServerGone("the server closed the connection")
        return [frames.decode_to_core(body) for body in self._splitter.feed(data)]
