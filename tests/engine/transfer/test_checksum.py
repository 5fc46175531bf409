"""A checksum sees every single changed byte, exchanged or empty blocks, and right bytes in a wrong place."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.transfer.blocks.checksum import ArenaMemory, bind, weights

BYTES = 512
WEIGHTS = [4271855937721911651, 16334231420934482485, 10495966238298330683]
BOUND = 17074639907958206805


def arena(seed):
    return torch.randint(0, 256, (4 * BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def sums(memory):
    return ArenaMemory(memory, 4).sums(range(4))


@settings(deadline=None)
@given(st.integers(0, 999), st.integers(0, 4 * BYTES - 1), st.integers(1, 255))
def test_any_changed_byte_changes_its_blocks_sum_only(seed, spot, change):
    memory = arena(seed)
    before = sums(memory)
    memory[spot] ^= change
    after = sums(memory)
    assert [i for i in range(4) if before[i] != after[i]] == [spot // BYTES]


@settings(deadline=None)
@given(st.integers(0, 999), st.integers(0, 63), st.integers(0, 63))
def test_words_that_change_places_are_seen(seed, one, other):
    memory = arena(seed)
    before = sums(memory)[0]
    words = memory.view(torch.int64)
    moved = bool(words[one] != words[other])
    words[[one, other]] = words[[other, one]]
    assert (sums(memory)[0] != before) == moved


def test_a_zero_block_does_not_pass_for_another():
    assert sums(torch.zeros(4 * BYTES, dtype=torch.uint8))[0] not in sums(arena(1))


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63), st.integers(0, 2**20), st.binary(min_size=16, max_size=16))
def test_room_index_and_hash_are_bound(total, room, index, content):
    other = content[:-1] + bytes([content[-1] ^ 1])
    places = [(room, index, content), (room + 1, index, content), (room, index + 1, content), (room, index, other)]
    assert len({bind(total, *place) for place in places}) == 4


@pytest.mark.parametrize(
    ("memory", "blocks", "reason"),
    [
        (torch.zeros(100, dtype=torch.uint8), 3, "does not hold 3 blocks"),
        (torch.zeros(4, 2 * BYTES, dtype=torch.uint8)[:, :BYTES], 4, "does not hold"),  # not one run of memory
        (torch.zeros(16, dtype=torch.uint8), 4, "whole 64-bit words"),
        (torch.zeros(48, dtype=torch.uint8), 4, "whole 64-bit words"),
    ],
)
def test_an_arena_holds_blocks_of_whole_words_in_one_run_of_memory(memory, blocks, reason):
    with pytest.raises(ValueError, match=reason):
        ArenaMemory(memory, blocks)


def test_an_arenas_figures():
    tensor = arena(1)
    memory = ArenaMemory(tensor, 4)
    figures = (memory.address, memory.num_blocks, memory.block_bytes, memory.length)
    assert figures == (tensor.data_ptr(), 4, BYTES, 4 * BYTES)
    assert memory.sums([2, 0]) == [memory.sums([2])[0], memory.sums([0])[0]]
    assert memory.sums([]) == []


def test_what_the_host_does_not_read_is_not_summed_up_there():
    memory = ArenaMemory(torch.empty(4 * BYTES, dtype=torch.uint8, device="meta"), 4)
    assert memory.block_bytes == BYTES
    with pytest.raises(ValueError, match="the arena is not in host memory"):
        memory.sums([0])


def test_the_sum_is_the_same_in_every_process_and_release():
    """Two workers of one KV revision may be of different releases."""
    assert weights(3).tolist() == WEIGHTS
    assert ArenaMemory(torch.arange(1, 4, dtype=torch.int64), 1).sums([0]) == [
        (WEIGHTS[0] + 2 * WEIGHTS[1] + 3 * WEIGHTS[2]) % 2**64
    ]
    assert bind(5, 1, 2, b"0123456789abcdef") == BOUND
