"""How fast this worker is, as the router and the autoscaler are told."""

from collections import deque
from statistics import median

_COLD_STEPS = 2  # the first steps touch memory for the first time and load code
_LEAST_TOKENS = 32  # a chunk's tail says little about speed


class Rates:
    """`prefill` in tokens per second, `step_time` in seconds of steps that decoded; 0 before there was any."""

    def __init__(self) -> None:
        self.step_time = 0.0
        self._cold = _COLD_STEPS
        self._samples: deque[float] = deque(maxlen=31)

    @property
    def prefill(self) -> float:
        """The median of recent steps: one slow step, or one from the cache, does not move it."""
        return median(self._samples) if self._samples else 0.0

    def measured(self, prompt_tokens: int, decode_rows: int, seconds: float) -> None:
        """A step was computed."""
        if self._cold:
            self._cold -= 1
            return
        if decode_rows:
            self.step_time += (seconds - self.step_time) * (0.1 if self.step_time else 1.0)
        if prompt_tokens >= _LEAST_TOKENS:
            self._samples.append(prompt_tokens / max(seconds, 1e-9))
