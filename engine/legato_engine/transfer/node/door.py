"""The door of a worker: a Unix socket at which workers of the same node get its arena, if they know the token."""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from legato_engine.transfer.node import handshake
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.memory_file import MemoryFile

FOLDER = Path("/dev/shm")  # of the IPC namespace: containers share it only if they share that
_MOST_VISITORS = 64  # that have not asked yet; an honest one asks immediately


class Door:
    """Listens in `folder`. `close` removes the socket; if this process is killed, another worker's start does."""

    def __init__(self, folder: Path, owner: ArenaOwner, offer: ArenaOffer, file: MemoryFile | None) -> None:
        """Visitors get the descriptor of `file`. Raises OSError."""
        self._owner = owner
        self._offer = offer
        self._file = file  # stays open
        self._fds = () if file is None else (file.fd,)
        self._path = folder / owner.door
        self._visitors: list[socket.socket] = []
        _remove_abandoned(folder)
        self._listener = _socket()
        unready = self._path.with_suffix(".new")  # renamed once it listens, so that nobody takes it for abandoned
        self._listener.bind(str(unready))
        unready.chmod(0o600)
        self._listener.listen(_MOST_VISITORS)
        unready.rename(self._path)

    def filenos(self) -> list[int]:
        """Descriptors that are readable while `serve` has work."""
        return [each.fileno() for each in (self._listener, *self._visitors)]

    def serve(self, tokens: Sequence[str]) -> None:
        """Answers all visitors that have asked."""
        with suppress(OSError):  # nobody is left
            while True:
                self._visitors.append(self._listener.accept()[0])
        for visitor in list(self._visitors):
            try:
                asked = visitor.recv(handshake.LONGEST, socket.MSG_DONTWAIT)
                if reply := handshake.answer(self._owner, tokens, asked, self._offer):
                    socket.send_fds(visitor, [reply], self._fds, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:  # it has gone
                pass
            self._visitors.remove(visitor)
            visitor.close()
        for late in self._visitors[:-_MOST_VISITORS]:
            self._visitors.remove(late)
            late.close()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        for each in (self._listener, *self._visitors):
            each.close()


class Visit:
    """Asks another worker for its arena."""

    def __init__(self, folder: Path, owner: ArenaOwner, token: str) -> None:
        """Raises OSError if its door is not in `folder`."""
        self._owner = owner
        self._token = token
        self._nonce = os.urandom(16)
        self._socket = _socket()
        try:
            self._socket.connect(str(folder / owner.door))
            self._socket.send(handshake.ask(owner, token, self._nonce))
        except OSError:
            self._socket.close()
            raise

    def fileno(self) -> int:
        return self._socket.fileno()

    def result(self) -> tuple[ArenaOffer, list[int]] | None:
        """The offer with its descriptors, which the caller closes; None if it has not come yet.

        Raises OSError if the door is closed, and ValueError for a wrong answer.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, handshake.LONGEST, 4, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        try:
            if not data:
                raise ValueError("it refused the token")
            return handshake.read_answer(self._owner, self._token, self._nonce, data), fds
        except ValueError:
            for fd in fds:
                os.close(fd)
            raise

    def close(self) -> None:
        self._socket.close()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def _remove_abandoned(folder: Path) -> None:
    """Removes sockets of killed workers."""
    for path in folder.glob("legato-" + "[0-9a-f]" * 16):
        with _socket() as probe, suppress(OSError):
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
