"""Large bodies take turns: few at a time are received and prepared, the others wait without being read.

Nothing is read of a body that waits, so TCP holds its client back, and many large bodies cost the event loop and the
memory no more than few. Turns go in the order in which they are asked for; very large bodies have turns of their own,
so that long prompts do not wait for them.

A body asks for a turn only when bytes have arrived, and keeps it only while more arrive. So slow clients hold up
nobody, however many there are: a client that makes its turn wait loses it, and asks again with its next bytes.
Meanwhile its body is read, and the time for it runs.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from legato_gateway.serving.body_budget import SMALL

VERY_LARGE = 1 << 20  # bytes; more have turns of their own
AT_ONCE = 3  # large ones: two that are prepared, and one that is received
VERY_LARGE_AT_ONCE = 2
PATIENCE = 0.5  # seconds that a turn waits for its client, at most
PACE = 16 << 20  # bytes per second that keep a turn
ROUNDS = 5  # iterations of the event loop until bytes in the kernel are read; TLS takes the most


class LargeBodyTurns:
    """Owner of the turns: `at_once` for large bodies, and `very_large` for those."""

    def __init__(
        self, at_once: int = AT_ONCE, very_large: int = VERY_LARGE_AT_ONCE, patience: float = PATIENCE
    ) -> None:
        """`patience` is in seconds."""
        self.patience = patience
        self.piece = asyncio.Lock()  # of one body, each time the event loop has looked at all connections
        self._large, self._very_large = _Lane(at_once), _Lane(very_large)

    @contextmanager
    def body(self) -> Iterator["Turn"]:
        """A body, which has no turn yet. One that it has is given back at the end."""
        turn = Turn(self)
        try:
            yield turn
        finally:
            turn.give_back()

    def lane(self, size: int) -> "_Lane | None":
        """Where a body of that size has its turns, if it needs any."""
        if size <= SMALL:
            return None
        return self._large if size <= VERY_LARGE else self._very_large

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books agree."""
        for lane in (self._large, self._very_large):
            assert len(lane.held) <= lane.at_once, "more have a turn than may"
            wait = [turn for turn, got in lane.waiting.items() if not got.done()]
            assert not wait or len(lane.held) == lane.at_once, "a body waits for a turn that nobody has"
            assert not lane.held & set(lane.waiting), "a body has its turn and waits for it"


class _Lane:
    """Owner of `at_once` turns: first come, first served."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.held: set[Turn] = set()
        self.waiting: dict[Turn, asyncio.Future[None]] = {}  # in order

    async def take(self, turn: "Turn") -> None:
        if len(self.held) < self.at_once:
            self.held.add(turn)
            return
        got = self.waiting[turn] = asyncio.get_running_loop().create_future()
        try:
            await got
        except asyncio.CancelledError:  # perhaps just when it was its turn
            self.leave(turn)
            raise

    def leave(self, turn: "Turn") -> None:
        """It has its turn, or waits for it, no longer."""
        self.waiting.pop(turn, None)
        self.held.discard(turn)
        while self.waiting and len(self.held) < self.at_once:
            turn = next(iter(self.waiting))
            got = self.waiting.pop(turn)
            if not got.done():  # else it was cancelled
                self.held.add(turn)
                got.set_result(None)


class Turn:
    """A large body's place among those that are received. It waits for its client as long as `PACE` allows."""

    def __init__(self, turns: LargeBodyTurns) -> None:
        self._turns = turns
        self._lane: _Lane | None = None  # of the turn that is held
        self._left = 0.0  # seconds that it may still wait for its client
        self._received = 0  # bytes, when it was last asked for
        self._lost: asyncio.Handle | None = None

    @property
    def held(self) -> bool:
        """Whether it is this body's turn."""
        return self._lane is not None

    async def take(self, received: int, announced: int = 0) -> None:
        """Waits for the turn of this body, of which `received` bytes have arrived, and until one more piece may be
        read. Small bodies do not wait, nor does one without new bytes."""
        lane = self._turns.lane(max(received, announced)) if received > SMALL else None
        if lane is None:
            return
        if lane is self._lane:
            self._left = min(self._turns.patience, self._left + (received - self._received) / PACE)
        else:
            self.give_back()
            await lane.take(self)
            self._lane, self._left = lane, 0.0
        self._received = received
        async with self._turns.piece:
            await asyncio.sleep(0)

    def give_back(self) -> None:
        """Lets the next one have it. One that is not held is no error."""
        if self._lane is not None:
            self._lane.leave(self)
            self._lane = None

    @contextmanager
    def patient(self) -> Iterator[None]:
        """The client is waited for within. What was waited for too long is given back meanwhile."""
        if self._lane is None:
            yield
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self._lost = loop.call_later(self._left, self._lose) if self._left > 0 else loop.call_soon(self._lose)
        try:
            yield
        finally:
            self._lost.cancel()
            self._left -= loop.time() - begun

    def _lose(self, rounds: int = ROUNDS) -> None:
        """Gives the turn back, unless bytes that have already arrived are read first."""
        if rounds:
            self._lost = asyncio.get_running_loop().call_soon(self._lose, rounds - 1)
        else:
            self.give_back()
