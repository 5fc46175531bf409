"""What a push becomes: bytes to write by the link, and checksums to announce once they are written."""

from collections.abc import Sequence
from dataclasses import dataclass

from legato_engine.transfer.link import PutSpan


@dataclass(frozen=True, slots=True)
class PutInFlight:
    """Blocks from number `first` of the sequence on, and what is announced once they are written."""

    first: int
    checksums: tuple[int, ...]
    bytes: int


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
