"""An event loop whose clock jumps to the next timer when nothing else is left to do: waits take no time."""

import asyncio
import selectors


class _Jumping(selectors.DefaultSelector):
    """Reports ready files immediately; instead of waiting it lets `passed` seconds pass."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits, and no timer is set: this would hang")
        if not ready:
            self.passed += timeout or 0.0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed
