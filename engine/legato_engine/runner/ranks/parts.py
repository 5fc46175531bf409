"""A rank's part of a model, which the first rank and the others make alike."""

import importlib.metadata
import platform
from typing import NamedTuple

from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.interface import Backend, Progress
from legato_engine.backends.sharded.checkpoint import ShardedCheckpoint
from legato_engine.backends.sharded.collectives import Collectives, OfCpuSteps, OnHost
from legato_engine.backends.sharded.rank import Rank
from legato_engine.backends.sharded.shared_memory import SharedMemory
from legato_engine.runner import backends
from legato_engine.runner.formats import Formats
from legato_engine.weights.checkpoint import Checkpoint


class RankPart(NamedTuple):
    """The arguments of a `ShardedBackend`, made from the weights of one rank."""

    backend: Backend
    checkpoint: ShardedCheckpoint
    rank: Rank
    collectives: Collectives
    kv_heads: int


def make(checkpoint: Checkpoint, chosen: Formats, rank: Rank, room: Room, memory: int, report: Progress) -> RankPart:
    """`memory` is the descriptor of memory that all ranks share."""
    part, shared = ShardedCheckpoint(checkpoint, rank), SharedMemory(memory, rank)
    collectives = OfCpuSteps(shared) if chosen.backend == "cpu" else OnHost(shared)
    backend = backends.make(part, chosen, None, room, report)
    return RankPart(backend, part, rank, collectives, checkpoint.config.kv_heads)


def versions() -> str:
    """What must be equal in all ranks, because it decides what they compute."""
    names = ("torch", "numba", "numpy")
    return ", ".join(
        (f"Python {platform.python_version()}", *(f"{name} {importlib.metadata.version(name)}" for name in names))
    )
