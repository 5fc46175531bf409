"""Prepares large bodies in processes of their own, one per body.

Decoding JSON holds the interpreter's lock: 8 MiB of many small values take a tenth of a second, which in a thread stops
all streams. So a template process is forked before the gateway has any thread, socket or event loop. It keeps the
loaded state, and forks a process per body. That shares the tokenizer's memory, frees its own immediately, yields to the
gateway on one CPU, and ends when nobody waits for it any more.
"""

import asyncio
import fcntl
import gc
import io
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from legato_gateway.errors import InternalFault
from legato_gateway.tokenizer.tokens import ModelTokenizer
from legato_protocol.process.parent import die_with_parent

NICENESS = 10
_SIZES = struct.Struct("=QQ")  # bytes of the pickled call, and of the body after it
_TOKENS = "tokens"

_T = TypeVar("_T")


class PreparationForks:
    """The gateway's side. Create it before any thread, and outside an event loop."""

    def __init__(self, tokens: ModelTokenizer) -> None:
        self._tokens = tokens
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _end_with(lambda: _Template(tokens, theirs).run(parent))
        theirs.close()

    async def run(self, prepare: Callable[[bytearray], _T], body: bytearray) -> _T:
        """Calls `prepare` with `body`, which is empty afterwards. Cancelling it ends the process.

        Raises InternalFault if the process was killed, and OSError if there is no process to fork it.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            socket.send_fds(self._control, [b"x"], [theirs.fileno()])
            theirs.close()
            call = _pickled(prepare, self._tokens)
            try:
                await loop.sock_sendall(ours, _SIZES.pack(len(call), len(body)) + call)
                await loop.sock_sendall(ours, body)
                body.clear()
                answer = await _read(loop, ours)
            except (BrokenPipeError, ConnectionResetError):
                answer = b""
        if not answer:
            raise InternalFault("the process that read this body was killed")
        returned, value = _unpickled(answer, self._tokens)
        if returned:
            return value  # type: ignore[no-any-return]
        raise value

    def close(self) -> None:
        """Ends the process that forks."""
        self._control.close()
        os.waitpid(self.pid, 0)


class _Template:
    """The process that is forked for each body."""

    def __init__(self, tokens: ModelTokenizer, control: socket.socket) -> None:
        self._tokens = tokens
        self._control = control

    def run(self, parent: int) -> None:
        """Forks for each socket that comes, until the gateway has ended."""
        if not die_with_parent(parent):
            return
        os.nice(NICENESS)  # so that the gateway does not wait for forks either
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway decides when it ends
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps children
        os.closerange(3, self._control.fileno())
        os.closerange(self._control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        gc.collect()
        gc.freeze()
        own = os.getpid()
        while (received := socket.recv_fds(self._control, 1, 1))[0]:
            for number in received[1]:
                with socket.socket(fileno=number) as connection:
                    self._fork(own, connection)

    def _fork(self, own: int, connection: socket.socket) -> None:
        try:
            forked = os.fork()
        except OSError:  # too many processes: the gateway sees the connection closed
            return
        if forked == 0:
            _end_with(lambda: self._prepare(own, connection))

    def _prepare(self, parent: int, connection: socket.socket) -> None:
        if not die_with_parent(parent):
            return
        self._control.close()
        call, body = _received(connection)
        _die_when_closed(connection, True)
        prepare = _unpickled(call, self._tokens)
        try:
            answer = True, prepare(body)
        except Exception as error:  # raised by `PreparationForks.run`
            error.add_note(traceback.format_exc())
            answer = False, error
        pickled = _pickled(answer, self._tokens)
        _die_when_closed(connection, False)  # the kernel would also signal the gateway's reads
        connection.sendall(pickled)


def _received(connection: socket.socket) -> tuple[bytes, bytearray]:
    """Reads a pickled call and a body. Ends this process if the gateway closed the connection."""
    with connection.makefile("rb") as file:
        sizes = file.read(_SIZES.size)
        if len(sizes) == _SIZES.size:
            call_size, body_size = _SIZES.unpack(sizes)
            call, body = file.read(call_size), bytearray(body_size)
            if file.readinto(body) == body_size:
                return call, body
    sys.exit()


async def _read(loop: asyncio.AbstractEventLoop, connection: socket.socket) -> bytes:
    """Reads until the other side closes."""
    data = bytearray()
    while piece := await loop.sock_recv(connection, 1 << 18):
        data += piece
    return bytes(data)


def _die_when_closed(connection: socket.socket, on: bool) -> None:
    """Has the kernel end this process by SIGIO when the other side closes; ends it if that has happened."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(connection, fcntl.F_GETFL)
    fcntl.fcntl(connection, fcntl.F_SETFL, flags | os.O_ASYNC if on else flags & ~os.O_ASYNC)
    if on and _is_closed(connection):  # before the flag was set
        sys.exit()


def _is_closed(connection: socket.socket) -> bool:
    """True if the other side has closed and all was read."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def _end_with(work: Callable[[], None]) -> NoReturn:
    """Runs `work` and exits, so that a forked process does nothing else that its parent was about to do."""
    try:
        work()
    except (SystemExit, BrokenPipeError):  # nobody waits for it any more
        pass
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


class _Pickler(pickle.Pickler):
    """Pickles the tokenizer by name: both sides have it."""

    def __init__(self, file: io.BytesIO, tokens: ModelTokenizer) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._tokens = tokens

    def persistent_id(self, value: Any) -> str | None:
        return _TOKENS if value is self._tokens else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tokens: ModelTokenizer) -> None:
        super().__init__(file)
        self._tokens = tokens

    def persistent_load(self, _: Any) -> ModelTokenizer:
        return self._tokens


def _pickled(value: Any, tokens: ModelTokenizer) -> bytes:
    file = io.BytesIO()
    _Pickler(file, tokens).dump(value)
    return file.getvalue()


def _unpickled(pickled: bytes, tokens: ModelTokenizer) -> Any:
    return _Unpickler(io.BytesIO(pickled), tokens).load()
