"""The inputs of a step in Triton: the host's facts about each row are expanded to the layers' arrays.

See `reference/step_inputs.md`.
"""

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration


@triton.jit
def _row_of(token, starts, rows, bisections):
    """The last row that starts at each token or before it; rows without tokens start where the next one does."""
    first = tl.zeros_like(token)
    end = first + rows
    for _ in range(bisections):
        middle = (first + end) // 2
        before = tl.load(starts + middle) <= token
        first = tl.where(before, middle, first)
        end = tl.where(before, end, middle)
    return first


# Compiled once for all sizes of a step.
@triton.jit(do_not_specialize=["count", "rows", "bisections", "slot_stride", "group_stride"])
def _expand(
    given,  # [count]
    starts,  # [rows + 1]
    lengths,  # [rows]
    tables,  # [groups, rows, blocks]
    sampled,
    tokens,  # [count]
    positions,  # [count]
    slots,  # [groups, count]
    count,
    rows,
    bisections,  # after which one row is left
    slot_stride,
    group_stride,
    table_stride,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
):
    group = tl.program_id(1).to(tl.int64)  # all groups write the same tokens and positions
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    exists = token < count
    real = token < tl.load(starts + rows)
    row = _row_of(token, starts, rows, bisections)
    end = tl.load(starts + row + 1, mask=real, other=0)
    position = tl.load(lengths + row, mask=real, other=0) - (end - token)
    table = tables + group * group_stride + row.to(tl.int64) * table_stride
    block = tl.load(table + position // BLOCK, mask=real, other=0)
    name = tl.load(given + token, mask=real, other=0)
    drawn = tl.load(sampled + (-1 - name), mask=real & (name < 0), other=0).to(tl.int32)
    tl.store(tokens + token, tl.where(name < 0, drawn, name), mask=exists)
    tl.store(positions + token, tl.where(real, position, 0), mask=exists)
    tl.store(slots + group * slot_stride + token, tl.where(real, block * BLOCK + position % BLOCK, -1), mask=exists)


def expand(
    given: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    sampled: torch.Tensor,
    tokens: torch.Tensor,
    positions: torch.Tensor,
    slots: torch.Tensor,
    block_size: int,
    config: Configuration,
) -> None:
    """Writes tokens, positions [count] and slots [groups, count] of a step from the facts about its rows, all int32.

    given [count] has the id of each token, or -1 - j for the j-th of `sampled`, the ids drawn by the step before (int32
    or int64, read only where referred to). starts [rows + 1]; lengths [rows]: the positions that a row's last token
    sees, including itself; tables [groups, rows, blocks]. Tokens from starts[rows] on are padding: 0 at
    position 0, slot -1. Tile: TOKENS that a program expands.
    """
    count, rows = given.shape[0], lengths.shape[0]
    _expand[(triton.cdiv(count, config.tiles["TOKENS"]), len(tables))](
        given,
        starts,
        lengths,
        tables,
        sampled,
        tokens,
        positions,
        slots,
        count,
        rows,
        rows.bit_length(),
        slots.stride(0),
        tables.stride(0),
        tables.stride(1),
        BLOCK=block_size,
        **config.options,
    )
