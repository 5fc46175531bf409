"""Sums of KV blocks, equal to the last bit."""

import torch
from places import Place, over

from legato_engine.kernels.gpu.block_sums import sum_blocks
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.transfer.blocks.checksum import MASK, ArenaMemory, weights

BLOCKS, EXTREMES = 5, (-(1 << 63), (1 << 63) - 1, -1, 0, 1)


@over(words=(4097, 1, 4096, 12288, 1 << 20), count=(3, 200))
def test_sums(place: Place, dtype: torch.dtype, words: int, count: int) -> None:
    """Blocks may come twice, and words be as large as words can be."""
    blocks = torch.randint(-(1 << 63), (1 << 63) - 1, (BLOCKS, words))
    blocks[0], blocks[1] = -1, torch.tensor(EXTREMES).repeat(-(-words // 5))[:words]
    ids = torch.randint(0, BLOCKS, (count,)).int()
    factors = torch.from_numpy(weights(words).view("int64"))
    on_device = (each.to(place.device) for each in (blocks, ids, factors))
    parts = sum_blocks(*on_device, choose("sum_blocks", {}, place.chip))
    assert [total & MASK for total in parts.cpu().sum(1).tolist()] == ArenaMemory(blocks, BLOCKS).sums(ids.tolist())
