"""Blocks copied between an arena and the host's memory, as hand-offs do it where UCX does not reach the arena."""

import time
from functools import partial

import torch
from places import Place, over

from legato_engine.kernels.gpu.block_sums import sum_blocks
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.transfer.blocks.checksum import MASK, weights
from legato_engine.transfer.device.cuda import CudaCopies, CudaCopy, CudaSums

BLOCKS, SLOTS = 40, 24


def _await(copy: CudaCopy) -> list[int]:
    deadline = time.monotonic() + 30
    while not copy.done():
        assert time.monotonic() < deadline, "the copy does not end"
    return copy.sums()


def _shuffled(count: int, run: int) -> list[int]:
    """0 … count - 1, of which `run` neighbours at a time stay together."""
    return torch.arange(count).view(-1, run)[torch.randperm(count // run)].flatten().tolist()


@over({"repeated": (1, 20)}, words=(64, 1 << 18))
def test_round_trips(place: Place, dtype: torch.dtype, words: int, repeated: int) -> None:
    """Half of the blocks go out, and come back to the others, while more is computed than copied."""
    if place.small:
        words, repeated = 64, min(repeated, 2)
    arena = torch.randint(-(1 << 62), 1 << 62, (BLOCKS, words), device=place.device)
    expected, factors = arena.cpu().clone(), torch.from_numpy(weights(words).view("int64"))
    sums = [int((block * factors).sum()) & MASK for block in expected]
    summing = partial(sum_blocks, config=choose("sum_blocks", {}, place.chip))
    copies = CudaCopies(arena, BLOCKS, SLOTS, CudaSums(arena, BLOCKS, summing))
    if place.device.type == "cuda":
        torch.cuda.synchronize()
    for _ in range(repeated):
        order = _shuffled(BLOCKS, 4)
        out, back, slots = order[:SLOTS], order[-SLOTS:], _shuffled(SLOTS, 3)
        busy = place.random(512, 512, dtype=dtype)
        busy @ busy
        assert _await(copies.to_slots(out, slots)) == [sums[block] for block in out]
        assert _await(copies.to_blocks(slots, back)) == [sums[block] for block in out]
        for target, moved in zip(back, [sums[block] for block in out], strict=True):  # some blocks are in both
            sums[target] = moved
        expected[back] = expected[out]
        assert torch.equal(arena.cpu(), expected)
