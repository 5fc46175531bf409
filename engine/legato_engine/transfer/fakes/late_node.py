"""Workers of one node in one process and virtual time: for tests and simulations.

Arenas open and copies run after random delays. A copy reads the bytes that are there when it runs, as one between two
processes does, even if their owner has ended or has reused the block.
"""

import ctypes
from collections.abc import Iterator, Sequence

from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.connections.seals import Token
from legato_engine.transfer.fakes.late_device import LateCopy, LateStream
from legato_engine.transfer.fakes.memory import Network
from legato_engine.transfer.node.interface import PeerArena
from legato_protocol.wire.handoff import PeerHello


class LateNeighbours:
    """Implements `Neighbours`: every worker of `network` with such neighbours is on the same node."""

    node = "node"

    def __init__(self, network: Network, epoch: str, arena: ArenaMemory, closed: float = 0.0) -> None:
        """`closed` is the probability that an arena cannot be opened."""
        self._failed: set[int] = set()
        self._network = network
        self._closed = closed
        self._opening: set[int] = set()
        self._arenas: dict[int, PeerArena] = {}
        network.arenas[epoch] = arena

    @property
    def readable(self) -> int:
        return len(self._arenas)

    @property
    def unreadable(self) -> int:
        return len(self._failed)

    def trust(self, tokens: Sequence[str]) -> None:
        """Everybody is trusted."""

    def meet(self, connection: int, hello: PeerHello, token: Token) -> None:
        if hello.node == self.node:
            self._opening.add(connection)
            self._network.after(self._network.transit(), lambda: self._open(connection, hello.epoch))

    def is_settled(self, connection: int) -> bool:
        return connection not in self._opening

    def arena(self, connection: int) -> PeerArena | None:
        return self._arenas.get(connection)

    def leave(self, connection: int) -> None:
        self._opening.discard(connection)
        self._arenas.pop(connection, None)
        self._failed.discard(connection)

    def poll(self) -> None:
        pass

    def timers(self) -> Iterator[float]:
        return iter(())

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        self._arenas.clear()

    def _open(self, connection: int, epoch: str) -> None:
        if connection not in self._opening:
            return
        self._opening.remove(connection)
        if self._network.chance(self._closed):
            self._failed.add(connection)
        else:
            self._arenas[connection] = self._network.arenas[epoch]


class LatePulls:
    """Implements `Pulls`; bytes change on the way as in the network's puts."""

    def __init__(self, network: Network, arena: ArenaMemory, stream: LateStream) -> None:
        self._network = network
        self._arena = arena
        self._stream = stream

    def begin(self, arena: PeerArena, sources: Sequence[int], blocks: Sequence[int]) -> LateCopy:
        assert isinstance(arena, ArenaMemory)
        sums: list[int] = []

        def copy() -> None:
            for source, block in zip(sources, blocks, strict=True):
                ctypes.memmove(self._arena.address_of(block), arena.address_of(source), arena.block_bytes)
                self._network.maybe_damage(self._arena.address_of(block), arena.block_bytes)
            sums.extend(self._arena.sums(blocks))

        return self._stream.begin_with(copy, LateCopy(results=sums))

    def close(self) -> None:
        pass
