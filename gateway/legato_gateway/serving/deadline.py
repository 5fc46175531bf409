"""By when a request has to end, counted from its arrival: its upload, its tokenizing and all waiting are part of it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from legato_gateway.errors import BadRequest, DeadlineExceeded
from legato_protocol import durations, names


@dataclass(frozen=True, slots=True)
class Deadline:
    """`arrived` and `ends` are on `clock`, in seconds."""

    arrived: float
    ends: float
    clock: Callable[[], float]

    def elapsed(self) -> float:
        """Seconds since the request arrived."""
        return self.clock() - self.arrived

    def left(self) -> float:
        """Seconds, more than 0. Raises DeadlineExceeded."""
        left = self.ends - self.clock()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before the request was tokenized")
        return left

    @asynccontextmanager
    async def limit(self, error: DeadlineExceeded) -> AsyncIterator[None]:
        """What is done within ends by the deadline, with `error`."""
        try:
            async with asyncio.timeout(self.left()):
                yield
        except TimeoutError:
            raise error from None


def header_seconds(text: str) -> float:
    """What a deadline header says, in seconds: `30`, `30s`, `500ms` or `1m30s`. Raises BadRequest."""
    try:
        return durations.parse_header(text.strip())
    except ValueError as error:
        raise BadRequest(f"{names.HEADER_DEADLINE}: {error}", param=names.HEADER_DEADLINE) from None
