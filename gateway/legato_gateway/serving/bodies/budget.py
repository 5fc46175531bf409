"""Limits the bytes of all bodies that are not prepared yet. Pure: nothing waits in here.

Bytes count as they arrive, not as a header announces them, since announcing costs nothing. A quarter is reserved for
small bodies, so that large ones never crowd them out.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from legato_gateway.errors import Overloaded

BODIES_FULL = "bodies_full"  # drop reason
SMALL = 65_536  # bytes
RETRY_AFTER = 5.0


class PendingBody:
    """One body's share of a budget."""

    def __init__(self, budget: "BodyBudget") -> None:
        self._budget = budget
        self.size = 0

    def grow(self, size: int) -> None:
        """Takes `size` more bytes. Raises Overloaded, and takes nothing, if they do not fit."""
        self._budget.take(size, self.size + size > SMALL)
        self.size += size


class BodyBudget:
    """Owner of `limit` bytes; None: no limit. One body of three quarters of it fits."""

    def __init__(self, limit: int | None = None, count_refusal: Callable[[str], None] = lambda _: None) -> None:
        """`count_refusal` is called with the drop reason of each refused body."""
        self.limit = limit
        self._count_refusal = count_refusal
        self._bodies: set[PendingBody] = set()
        self.used = 0

    @contextmanager
    def body(self) -> Iterator[PendingBody]:
        """Opens a body's share, and frees it at the end."""
        held = PendingBody(self)
        self._bodies.add(held)
        try:
            yield held
        finally:
            self._bodies.remove(held)
            self.used -= held.size

    def take(self, size: int, large: bool) -> None:
        """Implements `PendingBody.grow`."""
        if self.limit is not None and self.used + size > (self.limit * 3 // 4 if large else self.limit):
            text = f"bodies of {self.used} bytes are being received already; together they may have {self.limit}"
            self._count_refusal(BODIES_FULL)
            raise Overloaded(text, reason=BODIES_FULL, retry_after=RETRY_AFTER)
        self.used += size

    def check_integrity(self) -> None:
        """Raises AssertionError unless the total matches the bodies."""
        assert self.used == sum(body.size for body in self._bodies), "bytes of bodies are miscounted"
        assert self.limit is None or self.used <= self.limit, "more than the limit is taken"
