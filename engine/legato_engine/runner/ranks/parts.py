"""A rank's part of a model, which the first rank and the others make alike."""

import importlib.metadata
import platform
from typing import NamedTuple

import torch

from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.interface import Backend, Progress
from legato_engine.backends.sharded.checkpoint import ShardedCheckpoint
from legato_engine.backends.sharded.collectives import Collectives, OfCpuSteps, OfGpuSteps, OnHost
from legato_engine.backends.sharded.peer_memory import PeerMemory
from legato_engine.backends.sharded.rank import Rank
from legato_engine.backends.sharded.shared_memory import SharedMemory
from legato_engine.backends.sharded.sum_group import FEWEST, SumGroup, nccl_version
from legato_engine.runner import backends
from legato_engine.runner.formats import Formats
from legato_engine.weights.checkpoint import Checkpoint


class RankPart(NamedTuple):
    """The arguments of a `ShardedBackend`, made from the weights of one rank."""

    backend: Backend
    checkpoint: ShardedCheckpoint
    rank: Rank
    collectives: Collectives
    parts: int


class Exchange(NamedTuple):
    """The memory through which ranks exchange results: of the host, or of their GPUs, which a group may complement."""

    host: SharedMemory
    gpu: Device | None = None
    peers: PeerMemory | None = None
    group: SumGroup | None = None


def open_exchange(rank: Rank, memory: int, gpu: Device | None, room: Room, hidden: int) -> Exchange:
    """`memory` is the descriptor of memory that all ranks share."""
    peers = group = None
    if gpu is not None and gpu.place.type == "cuda":
        peers = PeerMemory(rank, gpu.place, room.tokens * hidden)
        group = SumGroup(rank, gpu.place, room.tokens * hidden) if rank.count >= FEWEST else None
    return Exchange(SharedMemory(memory, rank), gpu, peers, group)


def make(
    checkpoint: Checkpoint, chosen: Formats, rank: Rank, room: Room, exchange: Exchange, report: Progress
) -> RankPart:
    part, kv_heads = ShardedCheckpoint(checkpoint, rank), checkpoint.config.kv_heads
    if (scales := backends.scales_of_kv(checkpoint, chosen)) is not None:
        scales = scales[..., slice(*rank.span(kv_heads))]
    backend = backends.make(part, chosen, exchange.gpu, room, report, scales)
    if exchange.gpu is not None:
        add = OnHost(exchange.host).add if exchange.peers is None else exchange.peers.add
        return RankPart(backend, part, rank, OfGpuSteps(rank, add), 1)
    collectives = OfCpuSteps(exchange.host) if chosen.backend == "cpu" else OnHost(exchange.host)
    return RankPart(backend, part, rank, collectives, min(rank.count, kv_heads))


def files(checkpoint: Checkpoint) -> tuple[tuple[str, int, int], ...]:
    """Name, size and time of change of each file with tensors: equal if ranks have read the same model."""
    stats = [(path.name, path.stat()) for path in checkpoint.spans()]
    return tuple([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])


def versions() -> str:
    """What must be equal in all ranks, because it decides what they compute."""
    names = ("torch", "numba", "numpy", "triton")
    packages = [f"{name} {_version(name)}" for name in names]
    libraries = (f"CUDA {torch.version.cuda}", f"NCCL {nccl_version()}")
    return ", ".join((f"Python {platform.python_version()}", *packages, *libraries))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # triton, where there are no GPUs
        return "none"
