"""When a worker or its compute process counts as hung: the worker's server and the gateways agree on it here."""

_STEPS = 3  # a busy machine computes a step more slowly than those before it


def limit(patience: float, expected: float) -> float:
    """Seconds without a sign of life, or in one step: `patience`, and more where steps take long.

    `expected` is what the step under way should take, by the steps before it; 0 where nothing is known."""
    return patience + _STEPS * expected
