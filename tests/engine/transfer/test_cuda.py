"""Copies between an arena and slots of the host's memory, with an arena that the host reaches, too."""

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legato_engine.kernels.gpu import block_sums as triton
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.reference import block_sums as naive
from legato_engine.transfer.blocks.checksum import ArenaMemory
from legato_engine.transfer.device.cuda import CudaCopies, CudaDirect, CudaSums
from legato_engine.transfer.device.rank_copies import RankCopies

BLOCKS, SLOTS, WORDS = 6, 4, 100
KERNEL = partial(triton.sum_blocks, config=Configuration({"TILE": 64}))


class Counted:
    """Notes which blocks are summed up together."""

    def __init__(self):
        self.calls = []

    def __call__(self, words, ids, weights):
        self.calls.append(ids.tolist())
        return KERNEL(words, ids, weights)


class Copied(TorchDispatchMode):
    """Notes how many blocks each copy of torch's moves."""

    def __init__(self):
        super().__init__()
        self.counts = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default and args[0].shape[1:] == (WORDS,):
            self.counts.append(len(args[0]))
        return function(*args, **(kwargs or {}))


def make_arena():
    with torch.inference_mode():  # as a runner makes it
        return torch.randint(-(1 << 62), 1 << 62, (BLOCKS, 2, WORDS // 2), dtype=torch.int64)


def sums_of(arena, sum_blocks):
    return CudaSums(arena, BLOCKS, sum_blocks) if sum_blocks else None


by_checksum = pytest.mark.parametrize(
    "sum_blocks", [KERNEL, naive.sum_blocks, None], ids=["kernel", "torch", "no checksum"]
)


@by_checksum
def test_copies_are_exact_and_summed_up(sum_blocks):
    arena = make_arena()
    original, memory = arena.clone(), ArenaMemory(arena, BLOCKS)
    copies = CudaCopies(arena, BLOCKS, SLOTS, sums_of(arena, sum_blocks))
    out = copies.to_slots([5, 1], [3, 0])
    assert out.done()
    assert out.sums() == (memory.sums([5, 1]) if sum_blocks else [])
    back = copies.to_blocks([3, 0], [0, 2])
    assert torch.equal(arena, original[[5, 1, 1, 3, 4, 5]])
    assert back.sums() == (memory.sums([0, 2]) if sum_blocks else [])
    assert copies.nbytes == SLOTS * WORDS * 8
    assert copies.to_slots([], []).sums() == []


@by_checksum
def test_parts_of_ranks_are_copied_and_summed_up_like_whole_blocks(sum_blocks):
    """Of the second part, two ranks have copies."""
    arena = make_arena()
    original, memory = arena.clone(), ArenaMemory(arena, BLOCKS)
    first, second = arena[:, 0].clone(), arena[:, 1].clone()
    copy, sums = second.clone(), CudaSums(first, BLOCKS, sum_blocks) if sum_blocks else None
    copies = RankCopies([[first], [second, copy]], BLOCKS, SLOTS, sums)

    out = copies.to_slots([5, 1], [3, 0])
    back = copies.to_blocks([3, 0], [0, 2])

    assert out.done()
    assert back.done()
    assert out.sums() == back.sums() == (memory.sums([5, 1]) if sum_blocks else [])
    assert torch.equal(torch.stack((first, second), 1), original[[5, 1, 1, 3, 4, 5]])
    assert torch.equal(copy, second)


def test_neighbours_are_copied_together_and_all_blocks_summed_up_together():
    arena, counted = make_arena(), Counted()
    original = arena.clone()
    copies = CudaCopies(arena, BLOCKS, SLOTS, CudaSums(arena, BLOCKS, counted))
    assert counted.calls == [[0]], "a kernel is compiled before anything is handed over"
    with Copied() as out:
        copies.to_slots([3, 4, 5, 1], [0, 1, 2, 3])
    with Copied() as back:
        copies.to_blocks([2, 3, 0, 1], [0, 1, 4, 5])
    assert (out.counts, back.counts) == ([3, 1], [2, 2])
    assert torch.equal(arena, original[[5, 1, 2, 3, 3, 4]])
    assert counted.calls[1:] == [[3, 4, 5, 1], [0, 1, 4, 5]]


@by_checksum
def test_blocks_that_the_link_reaches_are_only_summed_up(sum_blocks):
    arena = make_arena()
    original, memory = arena.clone(), ArenaMemory(arena, BLOCKS)
    direct = CudaDirect(arena.device, sums_of(arena, sum_blocks), lambda: None)
    for begun in (direct.sum_outgoing([5, 1]), direct.sum_incoming([5, 1])):
        assert begun.done()
        assert begun.sums() == (memory.sums([5, 1]) if sum_blocks else [])
    assert torch.equal(arena, original)


def test_what_peers_have_written_is_flushed_before_it_is_summed_up_and_without_checksums_too():
    arena, done = make_arena(), []

    def summing(words, ids, weights):
        done.append("sum")
        return naive.sum_blocks(words, ids, weights)

    sums = CudaSums(arena, BLOCKS, summing)
    done.clear()
    direct = CudaDirect(arena.device, sums, lambda: done.append("flush"))
    direct.sum_outgoing([1])
    direct.sum_incoming([1, 2])
    assert done == ["sum", "flush", "sum"]
    CudaDirect(arena.device, None, lambda: done.append("flush")).sum_incoming([3])
    assert done == ["sum", "flush", "sum", "flush"]
