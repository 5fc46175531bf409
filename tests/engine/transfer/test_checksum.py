"""A checksum sees every single changed byte, exchanged or empty blocks, and right bytes in a wrong place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from legato_engine.transfer.checksum import ArenaMemory, bind

BYTES = 512


def arena(seed):
    return torch.randint(0, 256, (4 * BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def sums(memory):
    return ArenaMemory(memory, 4).sums(range(4))


@given(st.integers(0, 999), st.integers(0, 4 * BYTES - 1), st.integers(1, 255))
def test_any_changed_byte_changes_its_blocks_sum_only(seed, spot, change):
    memory = arena(seed)
    before = sums(memory)
    memory[spot] ^= change
    after = sums(memory)
    assert [i for i in range(4) if before[i] != after[i]] == [spot // BYTES]


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


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63), st.integers(0, 2**20), st.binary(min_size=16, max_size=16))
def test_room_index_and_hash_are_bound(total, room, index, content):
    other = content[:-1] + bytes([content[-1] ^ 1])
    places = [(room, index, content), (room + 1, index, content), (room, index + 1, content), (room, index, other)]
    assert len({bind(total, *place) for place in places}) == 4


def test_an_arena_of_odd_size_is_refused():
    with pytest.raises(ValueError, match="does not hold 3 blocks"):
        ArenaMemory(torch.zeros(100, dtype=torch.uint8), 3)
