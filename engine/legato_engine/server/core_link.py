"""The server's end of the socket pair, and the core's process."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable

from legato_engine.core import frames
from legato_engine.core.frames import FromCore, Splitter, ToCore

_CHUNK = 1 << 18


class CoreLink:
    """Connection to a core, from its start to its end. `process` is None if the core runs elsewhere (in tests)."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: asyncio.subprocess.Process | None = None,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._process = process
        self._splitter = Splitter()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def send(self, frame: ToCore) -> None:
        """Queues a frame. `receive` notices if the core has ended."""
        if not self._writer.is_closing():
            self._writer.write(frames.encode(frame))

    async def wait_writable(self) -> None:
        """Waits until the core has read most frames, or has ended."""
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> list[FromCore]:
        """Waits for at least one frame. Returns an empty list if the core has closed its end."""
        while True:
            try:
                data = await self._reader.read(_CHUNK)
            except ConnectionError:
                data = b""
            if not data:
                return []
            if bodies := self._splitter.feed(data):
                return [frames.decode_from_core(body) for body in bodies]

    async def end(self) -> str:
        """Closes the connection, kills the core if it still runs, and returns how it ended."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        self._writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        if self._process is None:
            return "its connection was closed"
        code = await self._process.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    async def stop(self, patience: float) -> None:
        """Gives the core `patience` seconds to end by itself, so that it can close its connections to peers."""
        self._writer.close()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), patience)
        await self.end()


Launch = Callable[[], Awaitable[CoreLink]]


async def connect(end: socket.socket, process: asyncio.subprocess.Process | None = None) -> CoreLink:
    """Opens a link over one end of a socket pair."""
    reader, writer = await asyncio.open_unix_connection(sock=end, limit=1 << 24)
    return CoreLink(reader, writer, process)


async def launch() -> CoreLink:
    """Starts a core process. Call it on the main thread: the kernel ends the child with the thread that created it."""
    ours, theirs = socket.socketpair()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "legato_engine.core",
            str(theirs.fileno()),
            str(os.getpid()),
            pass_fds=(theirs.fileno(),),
            stdin=asyncio.subprocess.DEVNULL,
        )
    finally:
        theirs.close()
    return await connect(ours, process)
