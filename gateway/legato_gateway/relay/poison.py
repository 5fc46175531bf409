"""Requests that may kill the workers that run them."""

from legato_gateway.relay.generation import RunningGeneration
from legato_gateway.workers.fleet import Fleet


def confirm(generation: RunningGeneration, worker: str, died: bool) -> bool:
    """Counts a death that the other worker of the pair reported first, once this gateway notices it.

    Returns True if it counted one.
    """
    noticed = {process for process in generation.suspected if process[0] == worker}
    generation.suspected -= noticed
    if died:
        generation.deaths |= noticed
    return died and bool(noticed)


def is_poisonous(generation: RunningGeneration, fleet: Fleet, deaths: int) -> bool:
    """True if `deaths` workers died of it. A broken connection looks like a death until the same epoch is back."""
    return sum(not fleet.lives(*death) for death in generation.deaths) >= deaths
