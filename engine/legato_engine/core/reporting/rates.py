"""The age of the last step and the duration of decode steps, as reported to the router and the autoscaler."""

_COLD_STEPS = 2  # the first steps touch memory for the first time and load code


class Rates:
    """`step_time`: smoothed seconds of a step that decodes, for each token that a sequence got in it; 0 before the
    first."""

    def __init__(self) -> None:
        self.step_time = 0.0
        self._cold = _COLD_STEPS
        self._prefilled: float | None = None
        self._decoded: float | None = None

    def measure(self, prompt_tokens: int, decode_rows: int, seconds: float, now: float, accepted: int = 0) -> None:
        """A step that took `seconds` ended `now`; `accepted` drafts were tokens of its decode rows, too."""
        if prompt_tokens:
            self._prefilled = now
        if decode_rows:
            self._decoded = now
        if self._cold:
            self._cold -= 1
        elif decode_rows:
            each = seconds * decode_rows / (decode_rows + accepted)
            self.step_time += (each - self.step_time) * (0.1 if self.step_time else 1.0)

    def prefill_age(self, now: float) -> float:
        """Seconds since the last step with prompt tokens; 0 before the first."""
        return 0.0 if self._prefilled is None else max(0.0, now - self._prefilled)

    def decode_age(self, now: float) -> float:
        """Seconds since the last step that decoded; 0 before the first."""
        return 0.0 if self._decoded is None else max(0.0, now - self._decoded)
