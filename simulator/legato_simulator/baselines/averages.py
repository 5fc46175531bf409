"""Moving averages, as metrics pipelines hand them to autoscalers."""

from collections import deque


class MovingAverage:
    """The mean of the values of the last `seconds`, including the current one."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._values: deque[tuple[float, float]] = deque()
        self._sum = 0.0

    def add(self, now: float, value: float) -> float:
        """Adds a value and returns the mean."""
        self._values.append((now, value))
        self._sum += value
        while now - self._values[0][0] >= self._seconds:
            self._sum -= self._values.popleft()[1]
        return max(0.0, self._sum / len(self._values))
