"""KV that a worker keeps in slower tiers than its arena, and restores when a sequence needs it. Pure.

The index follows each tier of a worker like another worker, under the name `holder`: a tier's events have numbers and
snapshots of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass

from legato_gateway.routing.filters import Matches, Need, most_blocks
from legato_gateway.routing.fleet_snapshot import WorkerView
from legato_protocol.wire.kv_events import ARENA, TIERS


@dataclass(frozen=True, slots=True)
class CachedBlocks:
    """Leading blocks of a sequence that a worker need not compute: `arena` of them are ready, and the rest of `count`
    takes `seconds` to restore."""

    arena: int
    count: int
    seconds: float = 0.0


def holder(worker: str, tier: int) -> str:
    """Returns the name of a worker's tier in the index."""
    return worker if tier == ARENA else f"{worker}\0{tier}"


def holders(worker: str) -> list[str]:
    """Returns the names of all tiers that a worker may have."""
    return [holder(worker, tier) for tier in range(len(TIERS))]


def cached_blocks(
    worker: WorkerView, need: Need, matched: int, matches: Matches, seconds: Callable[[int], float]
) -> CachedBlocks:
    """Returns the blocks to use of `matched` ones in the arena and further ones in other tiers.

    `seconds(blocks)` is the time to compute the rest after these blocks. A tier is used if restoring is faster.
    """
    cached = CachedBlocks(matched, matched)
    for tier, each in zip(worker.tiers, worker.restore_seconds or (0.0,) * len(worker.tiers), strict=False):
        count = min(matches.get(holder(worker.name, tier), 0), most_blocks(worker, need))
        restoring = max(0, count - cached.count) * each
        if count > cached.count and restoring + seconds(count) <= seconds(cached.count):
            cached = CachedBlocks(matched, count, cached.seconds + restoring)
    return cached


def most_cached(worker: WorkerView, matches: Matches) -> int:
    """Returns the leading blocks that any tier of the worker has."""
    return max(matches.get(holder(worker.name, tier), 0) for tier in (ARENA, *worker.tiers))
