"""What a push becomes: blocks to put once the device has written them, and bytes to write by the link."""

from collections.abc import Sequence
from dataclasses import dataclass

from legato_engine.transfer.device import DeviceEvent
from legato_engine.transfer.link import PutSpan
from legato_engine.transfer.runs import runs


@dataclass(slots=True, eq=False)
class BlockPut:
    """Blocks from number `first` of the sequence on, from the own arena to `targets` in the peer's.

    They may be read once `after` is done, where there is something to wait for.
    """

    tag: int
    connection: int
    first: int
    blocks: Sequence[int]
    hashes: Sequence[bytes]
    targets: Sequence[int]
    arena: int  # base address of the peer's
    after: DeviceEvent | None = None
    sums: Sequence[int] = ()  # of the blocks' bytes, once they were read


def spans(blocks: Sequence[int], local: int, targets: Sequence[int], remote: int, size: int) -> list[PutSpan]:
    """The i-th of `blocks` in the arena at `local` goes to the i-th of `targets` in the one at `remote`.

    Blocks of `size` bytes; those that are neighbours in both arenas, in the same order, share a span.
    """
    return [
        PutSpan(local + run.source * size, remote + run.target * size, run.length * size)
        for run in runs(blocks, targets)
    ]
