"""Layout of blocks in an arena, and the number of blocks in a worker's memory."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.errors import TooLittleMemory
from legato_engine.kvcache.layout import DTYPE_BYTES, KVLayout
from legato_engine.kvcache.moves import Restore, Save, in_batches
from legato_engine.runner.arena import Arena, count_blocks

LAYOUT = KVLayout(layers=2, kv_heads=3, block_size=4, head_dim=5, dtype="float32")
BLOCK = 2 * 2 * 3 * 4 * 5 * 4  # bytes


@pytest.fixture
def arena() -> Arena:
    return Arena(LAYOUT, 7, torch.device("cpu"))


def test_an_arena_is_one_page_aligned_allocation_of_zeros(arena):
    assert arena.blocks.shape == (7, 3, 2, 2, 4, 5)
    assert arena.blocks.dtype == torch.float32
    assert arena.nbytes == 7 * BLOCK
    assert arena.address % 4096 == 0
    assert not arena.blocks.any()
    assert (arena.num_blocks, arena.layout) == (7, LAYOUT)


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has no huge pages")
def test_the_kernel_may_hold_it_in_huge_pages(arena):
    own = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if area := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):  # neighbours may have become one with it
            own = int(area[1], 16) <= arena.address < int(area[2], 16)
        elif own and line.startswith("VmFlags:"):
            assert "hg" in line.split()
            return
    raise AssertionError("no mapping holds the arena")


def test_without_host_memory_the_device_allocates():
    arena = Arena(LAYOUT, 3, torch.device("meta"))
    assert arena.blocks.shape == (3, 3, 2, 2, 4, 5)
    assert arena.blocks.device.type == "meta"
    assert arena.nbytes == 3 * BLOCK


@pytest.mark.parametrize("index", [0, 3, 6])
def test_a_block_is_one_span_of_the_arena_and_writable(arena, index):
    arena.blocks[index] = 1.5
    block = arena.block(index)
    assert bytes(block) == arena.blocks[index].numpy().tobytes()
    block[:4] = b"\0\0\0\0"
    assert arena.blocks[index].flatten()[0] == 0
    assert arena.blocks.count_nonzero() == BLOCK // 4 - 1
    for beyond in (-1, 7):
        with pytest.raises(IndexError, match=rf"block {beyond} of an arena of 7"):
            arena.block(beyond)


def test_a_copy_changes_the_target_alone(arena):
    arena.blocks[2] = torch.rand(LAYOUT.block_shape)
    before = arena.blocks[2].clone()
    arena.copy(2, 5)
    assert torch.equal(arena.blocks[5], before)
    assert torch.equal(arena.blocks[2], before)
    assert not arena.blocks[[0, 1, 3, 4, 6]].any()


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_a_blocks_size_is_that_of_its_numbers(dtype):
    layout = replace(LAYOUT, dtype=dtype)
    assert layout.block_bytes == Arena(layout, 1, torch.device("cpu")).nbytes == BLOCK * DTYPE_BYTES[dtype] // 4


def test_layouts_that_differ_are_written_differently():
    """Workers compare the text in `Hello` before they exchange KV."""
    changes = {"layers": 3, "kv_heads": 4, "block_size": 8, "head_dim": 6, "dtype": "bfloat16"}
    others = {str(replace(LAYOUT, **{name: value})) for name, value in changes.items()}
    assert str(LAYOUT) == "head-major layers=2 kv_heads=3 block=4 dim=5 float32"
    assert len(others | {str(LAYOUT)}) == 6


def test_all_blocks_that_fit_are_counted_and_too_few_are_refused_with_both_ways_out():
    assert [count_blocks(LAYOUT, room, 40) for room in (10 * BLOCK, 11 * BLOCK - 1)] == [10, 10]
    ways = rf"10 blocks.*at least {11 * BLOCK:,} bytes.*a maxLength of at most 40"
    with pytest.raises(TooLittleMemory, match=ways):
        count_blocks(LAYOUT, 10 * BLOCK, 41)


MOVES = st.lists(st.builds(lambda kind, block, slot: Save(block, slot) if kind else Restore(slot, block),
                           st.booleans(), st.integers(0, 6), st.integers(0, 4)), max_size=30)  # fmt: skip


@settings(deadline=None)
@given(MOVES)
def test_moves_between_blocks_and_slots_are_done_in_their_order(moves):
    """However they are joined: of several moves to one place, the last one counts."""
    arena = Arena(LAYOUT, 7, torch.device("cpu"), host_slots=5)
    blocks, slots = list(range(1, 8)), [0] * 5
    for block, value in enumerate(blocks):
        arena.blocks[block] = value
    for move in moves:
        if isinstance(move, Save):
            slots[move.slot] = blocks[move.block]
        else:
            blocks[move.block] = slots[move.slot]
    arena.host.move(moves)
    assert [int(block.unique()) for block in arena.blocks] == blocks
    assert [int(slot.view(torch.float32).unique()) for slot in arena.host.slots] == slots
    times = arena.host.take_times()
    assert sum(time.blocks for time in times) <= len(moves)
    assert all(time.seconds >= 0 for time in times)
    assert arena.host.take_times() == ()


def test_neighbours_that_move_to_neighbours_are_one_copy():
    kinds = in_batches([Save(3, 1), Save(2, 0), Save(4, 2), Restore(2, 6), Restore(1, 5)])
    assert list(kinds) == [(Save, [2, 3, 4], [0, 1, 2]), (Restore, [1, 2], [5, 6])]
