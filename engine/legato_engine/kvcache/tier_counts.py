"""Counts of a tier of KV, which the core reports to the server."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TierCounts:
    """`blocks` of `slots` are in the tier; the other numbers count blocks since the start. `evicted` ones made
    room, `errors` are failed reads and writes, and rejected files; `problem` is the last one, for some minutes."""

    slots: int = 0
    blocks: int = 0
    saved: int = 0
    restored: int = 0
    evicted: int = 0
    save_seconds: float = 0.0
    restore_seconds: float = 0.0
    errors: int = 0
    problem: str = ""
