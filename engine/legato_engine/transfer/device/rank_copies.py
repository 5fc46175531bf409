"""Copies between slots in host memory and an arena whose blocks have parts on several GPUs, one for each rank."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from legato_engine.transfer.blocks.checksum import MASK
from legato_engine.transfer.device.cuda import CudaCopy, CudaSums, current, slots_of, stream, summed, words_of


class RankCopy:
    """Implements `BlockCopy`: copies of each part, of which `counted` are summed up."""

    def __init__(self, copies: Sequence[CudaCopy], counted: Sequence[CudaCopy]) -> None:
        self._copies = copies
        self._counted = counted

    def done(self) -> bool:
        return all(copy.done() for copy in self._copies)

    def sums(self) -> list[int]:
        return [sum(parts) & MASK for parts in zip(*[copy.sums() for copy in self._counted], strict=True)]


class _Part:
    """Words `first` to `last` of each block, in the memory of one GPU, with a stream for each direction."""

    def __init__(self, words: torch.Tensor, first: int, sums: CudaSums | None) -> None:
        self.words = words
        self.span = slice(first, first + words.shape[1])
        self.device = words.device
        self._sums = sums
        self.out, self.into = stream(self.device), stream(self.device)

    def summed(self, blocks: Sequence[int]) -> CudaCopy:
        with _on(self.device):
            return summed(self.device, self._sums, blocks)


class RankCopies:
    """Implements `BlockCopies`. `parts` are in the order of KV heads; each has one tensor, or several if ranks have the
    same heads: all are written, and the first is read."""

    def __init__(
        self, parts: Sequence[Sequence[torch.Tensor]], num_blocks: int, slots: int, sums: CudaSums | None
    ) -> None:
        """`sums` are for the first part; None: checksums are off. Raises RuntimeError if memory cannot be pinned."""
        self._read, self._written, first = list[_Part](), list[_Part](), 0
        for tensors in parts:
            for number, tensor in enumerate(tensors):
                own = None
                if sums is not None and number == 0:
                    with _on(tensor.device):
                        own = CudaSums(tensor, num_blocks, sums.sum_blocks, first) if first else sums
                part = _Part(words_of(tensor, num_blocks), first, own)
                self._written.append(part)
                self._read += [part] if number == 0 else []
            first = part.span.stop
        self._slots = slots_of(self, slots, first, self._read[0].device)

    @property
    def address(self) -> int:
        return self._slots.data_ptr()

    def to_slots(self, blocks: Sequence[int], slots: Sequence[int]) -> RankCopy:
        copies = []
        for part in self._read:
            with current(part.out):
                for block, slot in zip(blocks, slots, strict=True):
                    self._slots[slot, part.span].copy_(part.words[block], non_blocking=True)
                copies.append(part.summed(blocks))
        return RankCopy(copies, copies)

    def to_blocks(self, slots: Sequence[int], blocks: Sequence[int]) -> RankCopy:
        copies, counted = [], []
        for part in self._written:
            with current(part.into):
                for slot, block in zip(slots, blocks, strict=True):
                    part.words[block].copy_(self._slots[slot, part.span], non_blocking=True)
                copies.append(part.summed(blocks))
            counted += [copies[-1]] if part in self._read else []
        return RankCopy(copies, counted)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Makes `device` the current one, on which Triton launches kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
