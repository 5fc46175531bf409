"""The budget of random tests: small by default, large in the nightly job."""

import os

FACTOR = int(os.environ.get("LEGATO_TEST_BUDGET", "1"))


def times(count: int) -> int:
    """Number of random cases to try where `count` are enough for every run."""
    return count * FACTOR
