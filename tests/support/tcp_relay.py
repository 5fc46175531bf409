"""A TCP relay whose connections can be cut, for tests of what happens then."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


class TcpRelay:
    """A TCP relay whose connections can fall silent: no bytes and no FIN, as when a node or a firewall vanishes."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def block(self) -> None:
        """Drops everything in flight, and all later connections."""
        self._open.clear()

    def unblock(self) -> None:
        """For connections to come: those that were blocked stay dead."""
        for task in self._tasks:
            task.cancel()
        self._open.set()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            writer.write(data)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(task := asyncio.current_task())
        await self._open.wait()
        there, back = await asyncio.open_connection(*self._to)
        try:
            both = [asyncio.create_task(self._carry(reader, back)), asyncio.create_task(self._carry(there, writer))]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in both:
                    one.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        finally:
            self._tasks.discard(task)
            back.close()
            writer.close()

    @contextlib.asynccontextmanager
    async def running(self, host: str = "127.0.0.1") -> AsyncIterator["TcpRelay"]:
        server = await asyncio.start_server(self._serve, host, 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
