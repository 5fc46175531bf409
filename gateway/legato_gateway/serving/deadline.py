"""The time that a request may take, from its arrival: uploading, tokenizing and all waiting included."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from legato_gateway.errors import BadRequest, DeadlineExceeded
from legato_protocol import names
from legato_protocol.settings import durations


@dataclass(frozen=True, slots=True)
class Deadline:
    """`arrived` and `ends` are on `clock`, in seconds; `patience` is the longest time without progress."""

    arrived: float
    ends: float
    clock: Callable[[], float]
    patience: float = math.inf

    def elapsed(self) -> float:
        """Seconds since the request arrived."""
        return self.clock() - self.arrived

    def left(self) -> float:
        """Returns the seconds until it must have ended, more than 0. Raises DeadlineExceeded."""
        return self._until(self.ends)

    def left_to_prepare(self) -> float:
        """Returns the seconds until its first token is due, more than 0. Raises DeadlineExceeded."""
        return self._until(min(self.ends, self.arrived + self.patience))

    @asynccontextmanager
    async def limit(self, error: DeadlineExceeded) -> AsyncIterator[None]:
        """Raises `error` if the block takes longer than the first token may."""
        try:
            async with asyncio.timeout(self.left_to_prepare()):
                yield
        except TimeoutError:
            raise error from None

    def _until(self, moment: float) -> float:
        left = moment - self.clock()
        if left <= 0:
            raise DeadlineExceeded("the deadline passed before the request was tokenized")
        return left


def header_seconds(text: str) -> float:
    """Parses a deadline header into seconds: `30`, `30s`, `500ms` or `1m30s`. Raises BadRequest."""
    try:
        return durations.parse_header(text.strip())
    except ValueError as error:
        raise BadRequest(f"{names.HEADER_DEADLINE}: {error}", param=names.HEADER_DEADLINE) from None
