"""The record of one hand-off that a worker receives, and the blocks that its sequence needs."""

from dataclasses import dataclass, field
from itertools import repeat

from legato_engine.transfer.blocks.checksum import bind, index_of
from legato_engine.transfer.blocks.spans import FirstBlocks, GrantedSpan
from legato_engine.transfer.device.interface import BlockCopy, DeviceEvent
from legato_engine.transfer.node.interface import PeerArena
from legato_engine.transfer.session.registry import SessionRecord
from legato_protocol.wire import block_hash, handoff


@dataclass(slots=True)
class IncomingSession(SessionRecord):
    """One hand-off that this worker receives. It keeps `blocks` until it has arrived or they are released.

    The grant and all writes use `connection`; no other connection may write.
    """

    blocks: tuple[int, ...] = ()  # of all groups
    places: tuple[int, ...] = ()  # where the peer writes the blocks
    spans: tuple[GrantedSpan, ...] = ()  # of groups
    firsts: tuple[int, ...] = ()  # the first block, cached or not, of each group with a window
    cached: int = 0
    root: bytes = b""
    wanted: tuple[bytes, ...] = ()  # hashes of all of the sequence's blocks, if it is a fetch
    serial: int = 0
    since: float = 0.0
    claimed: dict[int, int] = field(default_factory=dict)  # the sender's checksum of each written one of `blocks`
    sums: dict[int, int] = field(default_factory=dict)  # the sum of each block's received bytes
    landing: list[tuple[list[int], BlockCopy]] = field(default_factory=list)  # indices of blocks, and their copies
    final: handoff.Final | None = None
    final_at: float = 0.0
    pulled_from: PeerArena | None = None  # where its blocks are copied from; None: the peer writes them
    after: DeviceEvent | None = None  # earlier steps may write to the blocks until it is done

    @property
    def busy(self) -> bool:
        return bool(self.landing)

    def accepts(self, message: handoff.Written) -> bool:
        """True if the message names a block of the sender's arena for each checksum, or if the sender writes."""
        arena, sources = self.pulled_from, message.sources
        if arena is None:
            return not sources
        return len(sources) == len(message.checksums) and all(source < arena.num_blocks for source in sources)

    def first_blocks(self, final: handoff.Final, block_size: int, sees: FirstBlocks) -> tuple[int, ...]:
        """The first block that the sequence's next token sees, in each group with a window."""
        return sees(max(final.computed, self.cached * block_size))

    def kept_blocks(self, needed: tuple[int, ...]) -> tuple[int, ...]:
        """The first block of each window from which on all are cached or written; at most the `needed` one.

        Other sequences may need blocks that this one does not.
        """
        kept = []
        for granted, span, first in zip(self.firsts, self.spans[1:], needed, strict=True):
            while first > span.first and span.offset + first - 1 - span.first in self.claimed:
                first -= 1
            kept.append(granted if first == span.first else first)
        return tuple(kept)

    def awaited(self, kept: tuple[int, ...], end: int) -> list[tuple[int, int, int]]:
        """Blocks before number `end` that the sender has to write: their groups, numbers, and indices in `blocks`."""
        awaited = list[tuple[int, int, int]]()
        for group, (span, first) in enumerate(zip(self.spans, (0, *kept), strict=True)):
            first = max(first, span.first)
            numbers = range(first, max(first, end))
            awaited += zip(repeat(group), numbers, span.indices(numbers.start, numbers.stop))
        return awaited

    def count_wrong(self, final: handoff.Final, block_size: int, awaited: list[tuple[int, int, int]]) -> int:
        """Number of blocks whose bytes do not match the sender's checksums for the tokens of `final`."""
        tokens = final.token_ids[: final.computed * 4]
        hashes = list(self.wanted) or block_hash.chain(tokens, block_size, self.root)
        if not self.wanted and final.computed % block_size:
            parent = hashes[-1] if hashes else self.root
            hashes.append(block_hash.child(parent, tokens[final.computed // block_size * block_size * 4 :]))
        return sum(
            bind(self.sums[index], self.key[0], index_of(group, number), hashes[number]) != self.claimed[index]
            for group, number, index in awaited
        )
