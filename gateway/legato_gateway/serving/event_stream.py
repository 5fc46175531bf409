"""The response of a streamed answer on its way: it begins once, and is never silent for long.

Load balancers close connections on which nothing comes for a minute or so. A comment line, which every reader of
server-sent events skips, keeps those of requests that are queued, or go on after a failure.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from starlette.types import Send

COMMENT: Final = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """`at_admission`: the response begins when the request is admitted, not with its first token. `keep_alive` is how
    many seconds a stream may be silent; 0: for ever."""

    at_admission: bool = True
    keep_alive: float = 15.0


class EventStream:
    """Sends one response. `begin` sends its head, and `first` are the events right behind it. Several tasks may use it:
    each event is sent whole."""

    def __init__(self, send: Send, begin: Callable[[], Awaitable[None]], first: Callable[[], bytes]) -> None:
        self._send = send
        self._begin = begin
        self._first = first
        self._beginning = asyncio.Lock()
        self._has_begun = asyncio.Event()
        self._asked = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._said = self._clock()  # when anything was sent last

    @property
    def begun(self) -> bool:
        """Its head was sent."""
        return self._has_begun.is_set()

    async def wait_begun(self) -> None:
        """Returns once its head was sent."""
        await self._has_begun.wait()

    async def begin(self) -> None:
        """Sends the head and the first events, unless that was done."""
        async with self._beginning:
            if not self.begun:
                await self._begin()
                if first := self._first():
                    await self._send({"type": "http.response.body", "body": first, "more_body": True})
                self._has_begun.set()
                self._said = self._clock()

    async def write(self, body: bytes, *, last: bool = False) -> None:
        """Sends `body`, and the head before it if need be. Nothing may be written after the last."""
        if not self.begun:
            await self.begin()
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
        self._said = self._clock()

    def ask(self) -> None:
        """A comment is to be written at once, if it has begun: the network then tells whether the client is there."""
        if self.begun:
            self._asked.set()

    async def keep_alive(self, seconds: float) -> None:
        """Writes a comment whenever nothing was sent for so long (0: never) and when asked to, until cancelled."""
        while True:
            left = self._said + seconds - self._clock() if seconds else None
            if left is None or left > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._asked.wait(), left)
            if self._asked.is_set() or (left is not None and left <= 0):
                self._asked.clear()
                await self.write(COMMENT)
