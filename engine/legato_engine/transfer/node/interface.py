"""Interfaces of reading blocks from the memory of workers on the same node, which `neighbours` and fakes implement.

The receiver of a hand-off copies: a worker lets others read its arena and never write to it, so no write can be late.
A sender may reuse its blocks while they are read, for example after a cancel; the checksum then differs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from legato_engine.transfer.connections.seals import Token
from legato_engine.transfer.device.interface import BlockCopy, DirectBlocks
from legato_protocol.wire.handoff import PeerHello


class PeerArena(Protocol):
    """The arena of another worker. It stays readable while this object exists, even if that worker ends."""

    @property
    def num_blocks(self) -> int: ...


class Neighbours(Protocol):
    """Other workers of this node. Nothing here blocks."""

    @property
    def node(self) -> str:
        """The value of `PeerHello.node`: identifies this node; "" if this worker's arena is not readable for others."""

    @property
    def readable(self) -> int:
        """Number of connections to workers whose arena this worker can read."""

    @property
    def unreadable(self) -> int:
        """Number of connections to workers of this node whose arena could not be opened."""

    def trust(self, tokens: Sequence[str]) -> None:
        """Accepts these tokens of visitors."""

    def meet(self, connection: int, hello: PeerHello, token: Token) -> None:
        """A peer has identified itself: starts to open its arena if it is on this node."""

    def is_settled(self, connection: int) -> bool:
        """False while the peer's arena is being opened, which takes at most a second."""

    def arena(self, connection: int) -> PeerArena | None:
        """The peer's arena, if it is open."""

    def leave(self, connection: int) -> None:
        """The connection has ended."""

    def poll(self) -> None:
        """Answers visitors, and continues to open arenas."""

    def timers(self) -> Iterator[float]:
        """Times at which `poll` has work even if `fileno` is not readable."""

    def fileno(self) -> int | None:
        """A descriptor that is readable while `poll` has work; None if there is no need for one."""

    def close(self) -> None: ...


class Pulls(Protocol):
    """Copies from arenas of other workers into this worker's."""

    def begin(self, arena: PeerArena, sources: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        """Starts to copy the i-th of `sources` in `arena` to the i-th of `blocks` here, followed by their sums."""

    def close(self) -> None: ...


class NoNeighbours:
    """Implements `Neighbours` for a worker that neither reads others' memory nor lets them read its own."""

    node = ""
    readable = unreadable = 0

    def trust(self, tokens: Sequence[str]) -> None:
        pass

    def meet(self, connection: int, hello: PeerHello, token: Token) -> None:
        pass

    def is_settled(self, connection: int) -> bool:
        return True

    def arena(self, connection: int) -> PeerArena | None:
        return None

    def leave(self, connection: int) -> None:
        pass

    def poll(self) -> None:
        pass

    def timers(self) -> Iterator[float]:
        return iter(())

    def fileno(self) -> int | None:
        return None

    def close(self) -> None:
        pass


class NoPulls:
    """Implements `Pulls` for a worker without neighbours."""

    def begin(self, arena: PeerArena, sources: Sequence[int], blocks: Sequence[int]) -> BlockCopy:
        raise ValueError("this worker reads no other worker's arena")

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Access to the memory of other workers on this node. `sums` is for arenas in device memory."""

    neighbours: Neighbours = field(default_factory=NoNeighbours)
    pulls: Pulls = field(default_factory=NoPulls)
    sums: DirectBlocks | None = None
