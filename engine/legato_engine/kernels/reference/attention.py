"""Reference for attention over the paged arena: one sequence, one token, one head at a time.

See `reference/attention.md`.
"""

import torch

from legato_engine.kernels.reference.float8 import decode


def attention(
    queries: torch.Tensor, layer: torch.Tensor, table: list[int], start: int, window: int | None,
    scales: torch.Tensor | None = None, sinks: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Queries [tokens, heads, dim] of one sequence at positions `start …`; their own KV is in the blocks already.

    layer [blocks, 2, kv_heads, block_size, dim]; `table` lists the sequence's blocks. With `scales` [2,
    kv_heads], the layer holds codes of e4m3, uint8. `sinks` [heads] are scores without a value. Result as queries.
    """
    kv_heads, size = layer.shape[2], layer.shape[3]
    shared = queries.shape[1] // kv_heads
    blocks = layer[table[: -(-(start + len(queries)) // size)]]
    blocks = blocks.float() if scales is None else decode(blocks, scales[:, :, None, None])
    by_position = blocks.permute(1, 2, 0, 3, 4).flatten(2, 3)  # [2, kv_heads, positions, dim]
    out = torch.empty_like(queries)
    for token in range(queries.shape[0]):
        end = start + token + 1
        first = 0 if window is None else max(0, end - window)
        for head in range(queries.shape[1]):
            keys, values = by_position[:, head // shared, first:end]
            scores = keys @ queries[token, head].float() / queries.shape[2] ** 0.5
            if sinks is not None:
                scores = torch.cat((scores, sinks[head : head + 1].float()))
            out[token, head] = torch.softmax(scores, 0)[: end - first] @ values
    return out
