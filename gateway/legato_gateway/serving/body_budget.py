"""How many bytes all bodies together may take until their requests are prepared. Pure: nothing waits in here.

Bytes count as they arrive, not as a header announces them: announcing costs nothing. A quarter is kept for small
bodies, so that large ones never crowd them out.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from legato_gateway.errors import Overloaded

BODIES_FULL = "bodies_full"  # drop reason
SMALL = 65_536  # bytes
RETRY_AFTER = 5.0


class HeldBody:
    """What one body takes of a budget."""

    def __init__(self, budget: "BodyBudget") -> None:
        self._budget = budget
        self.size = 0

    def grow(self, size: int) -> None:
        """So many bytes more are kept. Raises Overloaded, and takes nothing, where there is no room for them."""
        self._budget.take(size, self.size + size > SMALL)
        self.size += size


class BodyBudget:
    """Owner of `limit` bytes; None has no limit. A body of three quarters of it fits when it is alone."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._bodies: set[HeldBody] = set()
        self.used = 0

    @contextmanager
    def body(self) -> Iterator[HeldBody]:
        """A body. What it took is given back at the end."""
        held = HeldBody(self)
        self._bodies.add(held)
        try:
            yield held
        finally:
            self._bodies.remove(held)
            self.used -= held.size

    def take(self, size: int, large: bool) -> None:
        """For `HeldBody.grow`."""
        if self.limit is not None and self.used + size > (self.limit * 3 // 4 if large else self.limit):
            text = f"bodies of {self.used} bytes are being received already; together they may have {self.limit}"
            raise Overloaded(text, reason=BODIES_FULL, retry_after=RETRY_AFTER)
        self.used += size

    def check_integrity(self) -> None:
        """Raises AssertionError unless the books agree."""
        assert self.used == sum(body.size for body in self._bodies), "bytes of bodies are miscounted"
        assert self.limit is None or self.used <= self.limit, "more than the limit is taken"
