"""The arena's pages are there before blocks are used."""

import ctypes
import mmap
import os

import pytest
import torch

from legato_engine.kvcache.layout import KVLayout
from legato_engine.runner import population
from legato_engine.runner.arena import Arena

LAYOUT = KVLayout(layers=4, kv_heads=2, block_size=16, head_dim=64, dtype="float32")
COUNT = -(-2 * population.PIECE // LAYOUT.block_bytes) + 1  # into a third piece
PLENTY = 1 << 40

needs_populate = pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14), reason="Linux before 5.14"
)


def resident(arena: Arena) -> int:
    pages = (ctypes.c_ubyte * (-(-arena.nbytes // mmap.PAGESIZE)))()
    assert not ctypes.CDLL(None).mincore(ctypes.c_void_p(arena.address), ctypes.c_size_t(arena.nbytes), pages)
    return sum(page & 1 for page in pages)


@needs_populate
def test_all_pages_are_taken_and_keep_their_contents() -> None:
    arena = Arena(LAYOUT, COUNT, torch.device("cpu"))
    arena.blocks[3] = 7.0
    before = resident(arena)
    population.start(arena, available=lambda: PLENTY).join()
    assert before < resident(arena) == -(-arena.nbytes // mmap.PAGESIZE)
    assert bool((arena.blocks[3] == 7.0).all())
    assert arena.blocks.count_nonzero() == arena.blocks[3].numel()


@needs_populate
def test_memory_that_others_need_is_left_alone() -> None:
    arena = Arena(LAYOUT, COUNT, torch.device("cpu"))
    left = iter([population.PIECE + population.RESERVE, population.PIECE + population.RESERVE - 1])
    population.start(arena, available=lambda: next(left)).join()
    assert 0 < resident(arena) < -(-arena.nbytes // mmap.PAGESIZE)
