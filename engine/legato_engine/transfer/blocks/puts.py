"""Puts of blocks, and the spans of bytes that the link writes for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from legato_engine.transfer.blocks.runs import runs
from legato_engine.transfer.device.interface import DeviceEvent
from legato_engine.transfer.link import PutSpan


@dataclass(slots=True, eq=False)
class BlockPut:
    """Blocks of a group from the sequence's number `first` on, from this worker's arena to `targets` in the peer's.

    They may be read once `after` is done (None: now).
    """

    tag: int
    connection: int
    first: int
    blocks: Sequence[int]
    hashes: Sequence[bytes]
    targets: Sequence[int]
    arena: int  # base address of the peer's arena
    after: DeviceEvent | None = None
    group: int = 0
    pulled: bool = False  # the receiver copies the blocks, so nothing is written
    began: float = 0.0  # on the sender's clock
    sums: Sequence[int] = ()  # of the blocks' bytes, once known


def spans(blocks: Sequence[int], local: int, targets: Sequence[int], remote: int, size: int) -> list[PutSpan]:
    """Spans that write the i-th of `blocks` in the arena at `local` to the i-th of `targets` in the one at `remote`.

    Blocks have `size` bytes; blocks that are neighbours in both arenas, in the same order, share a span.
    """
    return [
        PutSpan(local + run.source * size, remote + run.target * size, run.length * size)
        for run in runs(blocks, targets)
    ]
