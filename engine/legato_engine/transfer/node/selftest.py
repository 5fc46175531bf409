"""The self-test of a worker's door: a visitor gets the arena's memory, sees its bytes, and cannot write."""

import mmap
import os

from legato_engine.transfer.connections.seals import Token
from legato_engine.transfer.node.handshake import ArenaOwner
from legato_engine.transfer.node.memory_file import MappedFile, MemoryFile
from legato_engine.transfer.node.neighbours import DoorNeighbours
from legato_protocol.wire.handoff import PeerHello

_ITSELF = 0  # ids of a link's connections begin at 1
_MARK = 16  # bytes


def check(neighbours: DoorNeighbours, owner: ArenaOwner, file: MemoryFile, token: str) -> None:
    """Visits this worker's own door, before any block is used. Raises OSError and ValueError with the failure."""
    neighbours.trust((token,))
    hello = PeerHello(owner.worker, owner.epoch, "", "", b"", 0, b"", b"", node=neighbours.node)
    neighbours.meet(_ITSELF, hello, Token.from_text(token))
    neighbours.poll()
    arena = neighbours.arena(_ITSELF)
    neighbours.leave(_ITSELF)
    if not isinstance(arena, MappedFile):
        raise ValueError("a visitor does not get the arena")
    _compare(arena, file)
    _check_sealed(file)


def _compare(arena: MappedFile, file: MemoryFile) -> None:
    mark = os.urandom(_MARK)
    file.memory[:_MARK] = mark
    seen = arena.read(0, _MARK)
    file.memory[:_MARK] = bytes(_MARK)
    if seen != mark:
        raise ValueError("a visitor does not see the arena's bytes")


def _check_sealed(file: MemoryFile) -> None:
    try:
        mmap.mmap(file.fd, len(file.memory))
    except PermissionError:
        return
    raise ValueError("the kernel lets other processes write to the arena")
