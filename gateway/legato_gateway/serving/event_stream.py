"""A streamed response that starts once and is never silent for long.

Load balancers close connections that are silent for a minute or so. A comment line, which every reader of server-sent
events skips, keeps them open while requests are queued or being retried.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from starlette.types import Send

COMMENT: Final = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class StreamPolicy:
    """`at_admission`: the response starts when the request is admitted, not with its first token.

    `keep_alive` is the longest silence in seconds; 0: no limit.
    """

    at_admission: bool = True
    keep_alive: float = 15.0


class EventStream:
    """Sends one response. `begin` sends its head, and `first` returns the events right after it.

    Several tasks may use it: each event is sent whole.
    """

    def __init__(self, send: Send, begin: Callable[[], Awaitable[None]], first: Callable[[], bytes]) -> None:
        self._send = send
        self._begin = begin
        self._first = first
        self._beginning = asyncio.Lock()
        self._started = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._said = self._clock()  # time of the last write

    @property
    def started(self) -> bool:
        """True once the head was sent."""
        return self._started.is_set()

    async def wait_started(self) -> None:
        """Waits until the head was sent."""
        await self._started.wait()

    async def begin(self) -> None:
        """Sends the head and the first events, unless that was done before."""
        async with self._beginning:
            if not self.started:
                await self._begin()
                if first := self._first():
                    await self._send({"type": "http.response.body", "body": first, "more_body": True})
                self._started.set()
                self._said = self._clock()

    async def write(self, body: bytes, *, last: bool = False) -> None:
        """Sends `body`, after the head if it was not sent yet. Nothing may follow the last."""
        if not self.started:
            await self.begin()
        await self._send({"type": "http.response.body", "body": body, "more_body": not last})
        self._said = self._clock()

    async def keep_alive(self, seconds: float) -> None:
        """Writes a comment after `seconds` of silence, until cancelled; 0: never."""
        while seconds:
            left = self._said + seconds - self._clock()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await self.write(COMMENT)
