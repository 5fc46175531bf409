"""Sums of KV blocks, by Triton and as written down, are those of `transfer.checksum` to the last bit."""

import mmap
from functools import partial

import torch
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st

from legato_engine.kernels.gpu import block_sums as triton
from legato_engine.kernels.gpu.configurations import Configuration, choose
from legato_engine.kernels.reference import block_sums as naive
from legato_engine.transfer.blocks.checksum import MASK, ArenaMemory, weights

WORDS = st.integers(1, 40) | st.sampled_from([63, 64, 65, 100, 500, 4095, 4096, 4097, 10_000])
_NO_RESERVE = 0x4000  # Linux; the module has no name for it before Python 3.13
EXTREMES = [-(1 << 63), (1 << 63) - 1, -1, 0, 1]


def sums(sum_blocks, blocks, ids):
    factors = torch.from_numpy(weights(blocks.shape[1]).view("int64"))
    parts = sum_blocks(blocks, torch.tensor(ids, dtype=torch.int32), factors)
    return [total & MASK for total in parts.sum(1).tolist()]


@settings(max_examples=times(8), deadline=None)
@given(words=WORDS, num_blocks=st.integers(1, 9), tile=st.sampled_from([1, 16, 64, 1024, 4096]), data=st.data())
def test_sums_are_those_of_the_host(words, num_blocks, tile, data):
    """One block and many, blocks that come twice, and the largest words."""
    tile = max(tile, 512) if words > 64 else tile  # each program takes the interpreter a millisecond
    ids = data.draw(st.lists(st.integers(0, num_blocks - 1), min_size=1, max_size=6))
    blocks = torch.randint(-(1 << 63), (1 << 63) - 1, (num_blocks, words))
    spots = torch.rand(num_blocks, words) < data.draw(st.sampled_from([0.0, 0.5, 1.0]))
    blocks[spots] = torch.tensor(EXTREMES)[torch.randint(0, 5, (int(spots.sum()),))]
    expected = ArenaMemory(blocks, num_blocks).sums(ids)

    assert sums(partial(triton.sum_blocks, config=Configuration({"TILE": tile})), blocks, ids) == expected
    assert sums(naive.sum_blocks, blocks, ids) == expected


def test_blocks_that_begin_where_32_bits_end():
    """The arena has 32 GiB, of which only the pages that are touched take memory. Its first block has no ones."""
    words = 1 << 20
    far = (1 << 32) // words
    memory = mmap.mmap(-1, (far + 1) * words * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    blocks = torch.frombuffer(memory, dtype=torch.int64).view(far + 1, words)
    blocks[far] = 1
    sum_blocks = partial(triton.sum_blocks, config=choose("sum_blocks", {}, "interpreter"))
    assert sums(sum_blocks, blocks, [far]) == [sum(weights(words).tolist()) & MASK]
