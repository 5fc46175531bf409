"""The last lines that the processes of a `legato up` wrote, for who asks later."""

from collections import deque
from collections.abc import Mapping
from typing import Any

KEPT_BYTES = 8 << 20  # of all lines, as UTF-8
PAGE_BYTES = 64 << 10  # of one answer, which may be six times as long as JSON


class LogLines:
    """A bounded history. Each line has a number, so that who follows asks for what came after it."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most = kept_bytes
        self._lines: deque[tuple[int, str, str]] = deque()
        self._bytes = 0
        self._next = 1

    def add(self, pod: str, text: str) -> None:
        """A line of a pod; the oldest go to make room for it."""
        self._lines.append((self._next, pod, text))
        self._next += 1
        self._bytes += _size(pod, text)
        while self._bytes > self._most and self._lines:
            _, *dropped = self._lines.popleft()
            self._bytes -= _size(*dropped)

    def page(self, after: int, pod: str | None, tail: int | None) -> dict[str, Any]:
        """Lines of a pod, or of all, after the line `after`; of these the last `tail`. `next` is what to ask for after
        them, and `more` says whether there are more already."""
        found = [line for line in self._lines if line[0] > after and pod in (None, line[1])]
        found = found[-tail:] if tail else [] if tail == 0 else found
        taken, size = 0, 0
        for _, *line in found:
            size += _size(*line)
            if taken and size > PAGE_BYTES:
                break
            taken += 1
        more = taken < len(found)
        last = found[taken - 1][0] if more else max(after, self._next - 1)
        return {"lines": [list(line) for _, *line in found[:taken]], "next": last, "more": more}

    def pods(self) -> list[str]:
        """Who wrote them."""
        return sorted({pod for _, pod, _ in self._lines})


def told(lines: LogLines, order: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to an order for logs; `error` where nobody of that name has written anything."""
    pod = order.get("pod")
    if pod is not None and pod not in lines.pods():
        return {"error": f"{pod} has written nothing (there are lines of: {', '.join(lines.pods()) or 'nobody'})"}
    return lines.page(int(order.get("after", 0)), pod, order.get("tail"))


def _size(pod: str, text: str) -> int:
    return len(pod) + len(text.encode(errors="replace"))
