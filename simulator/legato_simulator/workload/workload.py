"""A workload: requests with their arrival times."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload."""

    at: float  # seconds from the beginning
    prompt: int  # tokens
    output: int  # tokens
    blocks: tuple[int, ...] = ()  # prefix ids, one per `block` tokens; equal ids are equal prefixes; empty if unknown


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, in order of time."""

    name: str
    arrivals: tuple[Arrival, ...]
    block: int = 512  # tokens that one id of `blocks` stands for
