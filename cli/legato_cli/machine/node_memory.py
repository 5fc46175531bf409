"""Reading KV from another worker's memory on this machine, for `legato doctor`: a worker's self-test, and the speed."""

import os
import time
from pathlib import Path

import numpy as np

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.node import selftest
from legato_engine.transfer.node.door import FOLDER
from legato_engine.transfer.node.handshake import ArenaOffer, ArenaOwner
from legato_engine.transfer.node.host_pulls import HostPulls
from legato_engine.transfer.node.memory_file import MappedFile, MemoryFile
from legato_engine.transfer.node.neighbours import DoorNeighbours, OwnArena

BLOCKS, BLOCK_BYTES = 16, 1 << 20
_ROUNDS = 5
_NAME = "Within a node"


def line(folder: Path = FOLDER) -> str:
    """Returns the speed of copies with checksums, or the reason why workers cannot read each other's memory here."""
    try:
        return (
            f"{_NAME:<14} usable; {_measure(folder) / 1e9:.1f} GB/s from the memory of another process, with checksums"
        )
    except (OSError, ValueError) as error:
        return f"{_NAME:<14} not usable: {error}"


def _measure(folder: Path) -> float:
    """Bytes per second. Raises OSError and ValueError."""
    file, owner = MemoryFile(BLOCKS * BLOCK_BYTES), ArenaOwner(f"doctor-{os.getpid()}", "0")
    neighbours = DoorNeighbours(OwnArena(owner, ArenaOffer(BLOCKS, BLOCK_BYTES), file), time.monotonic, folder)
    try:
        selftest.check(neighbours, owner, file, "doctor")
    finally:
        neighbours.close()
    file.memory[:] = bytes(len(file.memory))
    arena = MappedFile(file.fd, BLOCKS, BLOCK_BYTES)
    pulls = HostPulls(ArenaMemory(np.zeros((BLOCKS, BLOCK_BYTES), np.uint8), BLOCKS))
    seconds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        pulls.begin(arena, range(BLOCKS), range(BLOCKS)).sums()
        seconds.append(time.perf_counter() - begin)
    pulls.close()
    return BLOCKS * BLOCK_BYTES / min(seconds)
