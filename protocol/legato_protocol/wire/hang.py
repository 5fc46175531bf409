"""The time after which a worker or its compute process counts as hung, for the worker's server and gateways alike."""

_STEPS = 3  # on a busy machine, a step takes longer than the previous ones


def limit(patience: float, expected: float) -> float:
    """Returns the allowed seconds without a sign of life, or in one step: `patience`, and more for long steps.

    `expected` is the predicted duration of the running step in seconds; 0 if unknown."""
    return patience + _STEPS * expected
