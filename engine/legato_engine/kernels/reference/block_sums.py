"""Reference for sums of KV blocks: see `reference/block_sums.md`. Also used where there are no kernels."""

import torch


def sum_blocks(words: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """words int64 [num_blocks, n], ids int32 [count], weights int64 [n] → int64 [count, 1]: each sum in one part.

    Waits for nothing on a device, and takes the memory of two blocks there. `ids` may not be empty.
    """
    return torch.stack([(words.index_select(0, one) * weights).sum(1) for one in torch.split(ids, 1)])
