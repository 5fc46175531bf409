"""The last log lines of the processes of `legato up`, for `legato logs`."""

from collections import deque
from collections.abc import Mapping
from typing import Any

KEPT_BYTES = 8 << 20  # of all lines in UTF-8
PAGE_BYTES = 64 << 10  # of one answer; its JSON may be six times as long


class LogLines:
    """A bounded history with numbered lines, so that a follower can ask for newer lines."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most = kept_bytes
        self._lines: deque[tuple[int, str, str]] = deque()
        self._bytes = 0
        self._next = 1

    def add(self, pod: str, text: str) -> None:
        """Adds a line of a pod, and drops the oldest lines if there is no room."""
        self._lines.append((self._next, pod, text))
        self._next += 1
        self._bytes += _size(pod, text)
        while self._bytes > self._most and self._lines:
            _, *dropped = self._lines.popleft()
            self._bytes -= _size(*dropped)

    def page(self, after: int, pod: str | None, tail: int | None) -> dict[str, Any]:
        """Returns the lines of one pod, or all pods, after line `after`, or only the last `tail` of them.

        `next` is the `after` of the next page; `more` is True if it already has lines.
        """
        newer = [line for line in self._lines if line[0] > after and pod in (None, line[1])]
        newer = newer[-tail:] if tail else [] if tail == 0 else newer
        taken, size = 0, 0
        for _, *line in newer:
            size += _size(*line)
            if taken and size > PAGE_BYTES:
                break
            taken += 1
        more = taken < len(newer)
        last = newer[taken - 1][0] if more else max(after, self._next - 1)
        return {"lines": [list(line) for _, *line in newer[:taken]], "next": last, "more": more}

    def pods(self) -> list[str]:
        """Returns the pods that have lines."""
        return sorted({pod for _, pod, _ in self._lines})


def answer(lines: LogLines, order: Mapping[str, Any]) -> dict[str, Any]:
    """Answers an order for logs, with `error` if the pod has no lines."""
    pod = order.get("pod")
    if pod is not None and pod not in lines.pods():
        return {"error": f"{pod} has written nothing (there are lines of: {', '.join(lines.pods()) or 'nobody'})"}
    return lines.page(int(order.get("after", 0)), pod, order.get("tail"))


def _size(pod: str, text: str) -> int:
    return len(pod) + len(text.encode(errors="replace"))
