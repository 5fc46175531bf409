"""Slots for large bodies: few are received and prepared concurrently, the others wait unread.

An unread body makes TCP hold its client back, so large bodies cost the event loop and the memory little, however many
they are. Slots are given in the order of requests. Very large bodies have their own slots, so that long prompts do not
wait for them.

A body asks for a slot only when bytes have arrived, and keeps it only while more arrive. So slow clients delay nobody:
a client that keeps its slot waiting loses it, and asks again with its next bytes. Meanwhile its body is read, and its
deadline goes on.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from legato_gateway.serving.bodies.budget import SMALL

VERY_LARGE = 1 << 20  # bytes; larger bodies have their own slots
LARGE_SLOTS = 3  # two that are prepared, and one that is received
VERY_LARGE_SLOTS = 2
PATIENCE = 0.5  # seconds that a slot waits for its client, at most
PACE = 16 << 20  # bytes per second that keep a slot
ROUNDS = 5  # iterations of the event loop until bytes in the kernel are read; TLS takes the most


class LargeBodySlots:
    """Owner of the slots: `large` of them, and `very_large` for very large bodies; first come, first served."""

    def __init__(
        self, large: int = LARGE_SLOTS, very_large: int = VERY_LARGE_SLOTS, patience: float = PATIENCE
    ) -> None:
        """`patience` is in seconds."""
        self.patience = patience
        self.piece = asyncio.Lock()  # one piece of one body per iteration over all connections
        self._large, self._very_large = asyncio.BoundedSemaphore(large), asyncio.BoundedSemaphore(very_large)

    @contextmanager
    def body(self) -> Iterator["BodySlot"]:
        """Opens a body without a slot, and frees its slot at the end."""
        slot = BodySlot(self)
        try:
            yield slot
        finally:
            slot.give_back()

    def lane(self, size: int) -> asyncio.BoundedSemaphore | None:
        """Returns the lane for a body of that size, or None if it needs no slot."""
        if size <= SMALL:
            return None
        return self._large if size <= VERY_LARGE else self._very_large


class BodySlot:
    """The slot of a large body, if it has one. It waits for the client as long as `PACE` allows."""

    def __init__(self, slots: LargeBodySlots) -> None:
        self._slots = slots
        self._lane: asyncio.BoundedSemaphore | None = None  # of the slot that it has
        self._left = 0.0  # seconds that it may keep waiting for its client
        self._received = 0  # bytes, when it last asked for a slot
        self._lost: asyncio.Handle | None = None

    @property
    def held(self) -> bool:
        """True while the body has a slot."""
        return self._lane is not None

    async def take(self, received: int, announced: int = 0) -> None:
        """Waits for a slot, then until one more piece may be read. `received` bytes have arrived.

        Small bodies do not wait, nor do bodies without new bytes.
        """
        lane = self._slots.lane(max(received, announced)) if received > SMALL else None
        if lane is None:
            return
        if lane is self._lane:
            self._left = min(self._slots.patience, self._left + (received - self._received) / PACE)
        else:
            self.give_back()
            await lane.acquire()
            self._lane, self._left = lane, 0.0
        self._received = received
        async with self._slots.piece:
            await asyncio.sleep(0)

    def give_back(self) -> None:
        """Frees the slot, if any."""
        if self._lane is not None:
            self._lane.release()
            self._lane = None

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Waits for the client inside. The slot is freed if that takes too long."""
        if self._lane is None:
            yield
            return
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._lost = loop.call_later(self._left, self._lose) if self._left > 0 else loop.call_soon(self._lose)
        try:
            yield
        finally:
            self._lost.cancel()
            self._left -= loop.time() - started

    def _lose(self, rounds: int = ROUNDS) -> None:
        """Frees the slot, unless bytes that have already arrived are read first."""
        if rounds:
            self._lost = asyncio.get_running_loop().call_soon(self._lose, rounds - 1)
        else:
            self.give_back()
