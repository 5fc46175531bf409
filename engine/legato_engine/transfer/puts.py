"""What a push becomes: blocks to put once the device has written them, and bytes to write by the link."""

from collections.abc import Sequence
from dataclasses import dataclass

from legato_engine.transfer.device import DeviceEvent
from legato_engine.transfer.link import PutSpan


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
    found: list[PutSpan] = []
    for block, target in zip(blocks, targets, strict=True):
        here, there = local + block * size, remote + target * size
        last = found[-1] if found else None
        if last and (here, there) == (last.local + last.length, last.remote + last.length):
            found[-1] = PutSpan(last.local, last.remote, last.length + size)
        else:
            found.append(PutSpan(here, there, size))
    return found
