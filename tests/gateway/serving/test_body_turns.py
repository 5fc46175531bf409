"""Large bodies take turns: however many arrive at once, one piece is read each time all connections were looked at."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from legato_gateway.serving import bodies
from legato_gateway.serving.body_budget import SMALL, BodyBudget

PIECE = b"x" * (SMALL + 1)
PIECES = 4
MANY = 10


class Arrived:
    """A request whose body is all there."""

    def __init__(self, pieces: list[bytes], read: list[int], number: int) -> None:
        self.headers: dict[str, str] = {}
        self._pieces, self._read, self._number = pieces, read, number

    async def stream(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            self._read.append(self._number)
            yield piece


async def read(request: Any, turns: asyncio.Lock) -> int:
    with BodyBudget().body() as held:
        return len(await bodies.read(request, 1 << 30, held, turns))


@pytest.mark.anyio
async def test_a_small_body_is_read_while_large_ones_take_turns() -> None:
    order: list[int] = []
    turns = asyncio.Lock()
    large = [asyncio.create_task(read(Arrived([PIECE] * PIECES, order, number), turns)) for number in range(MANY)]
    await asyncio.sleep(0)
    assert len(order) == MANY  # the first piece of each, to know that it is large
    small = asyncio.create_task(read(Arrived([b"a", b"b"], order, -1), turns))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert small.done()
    assert len(order) <= MANY + 4
    assert await asyncio.gather(*large) == [len(PIECE) * PIECES] * MANY
    pieces = [number for number in order if number >= 0]
    assert pieces == sorted(range(MANY), key=pieces.index) * PIECES  # in turn
