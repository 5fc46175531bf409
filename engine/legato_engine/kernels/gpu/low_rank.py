"""Low-rank updates of a step's tokens by many adapters in Triton. The maths is in `reference/low_rank.md`.

Two launches update a linear layer: one multiplies tokens with the A of their adapters, the other these inner values
with B, and adds the products to the layer's outputs. Tokens are sorted by adapter into tiles, as in Punica's SGMV (Chen
et al., 2023). A program reads from device memory the tokens of its tile, and where the matrices of their adapter are.
So both launches depend only on the number of tokens, and a CUDA graph captures them once for all adapters, ranks and
rows. Unused tiles end immediately, and tokens without an adapter are in no tile.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu.configurations import Configuration

ROWS = 16  # tokens of a tile
RANKS = 16  # ranks that are multiplied together; inner values have room for a multiple of them
FIELDS = 3  # of a tile: address of the adapter's table, its first place in `order`, its tokens
MATRIX_FIELDS = 5  # of a projection in an adapter's table: see `AdaptedRows`
MOST_SPLITS = 8
ALIGNED = 16  # rows of B begin at multiples of this many numbers
_LEAST_INPUTS = 256  # of a split
_ROWS, _RANKS, _FIELDS = tl.constexpr(ROWS), tl.constexpr(RANKS), tl.constexpr(FIELDS)
_MATRIX_FIELDS, _ALIGNED = tl.constexpr(MATRIX_FIELDS), tl.constexpr(ALIGNED)


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """The tokens of a step with adapters, sorted by adapter. All arrays have fixed addresses for a step of a size.

    A tile names the table of its adapter, int64 [projections, MATRIX_FIELDS]: addresses of A [rank, inputs] and of B
    transposed [rank, outputs up to a multiple of ALIGNED], both multiples of 16 bytes; the rank, 0 without an update;
    the projection's first output and its number of outputs."""

    order: torch.Tensor  # int32 [tokens]: indexes of tokens
    tiles: torch.Tensor  # int64 [tiles, FIELDS]; unused ones have 0 tokens
    inner: torch.Tensor  # float32, memory for inner values
    ranks: int  # room of a projection's inner values: a multiple of RANKS
    processors: int

    def splits(self, inputs: int, projections: int) -> int:
        """Parts of the inputs that `shrink` computes in parallel: a few tiles would not fill the chip."""
        wanted = -(-2 * self.processors // (len(self.tiles) * projections))
        return max(1, min(wanted, MOST_SPLITS, inputs // _LEAST_INPUTS))


class LowRankLayer(NamedTuple):
    """A linear layer: its first projection in tables of adapters, the number of them, and their largest outputs.
    `even`: outputs of all projections are multiples of ALIGNED."""

    first: int
    projections: int
    widest: int
    even: bool


def most_tiles(tokens: int, adapters: int) -> int:
    """The most tiles of this number of tokens and of different adapters: each adapter's last one may be incomplete."""
    return min(tokens, (tokens + min(adapters, tokens) * (ROWS - 1)) // ROWS)


def inner_room(tokens: int, projections: int, ranks: int, processors: int) -> int:
    """The count of inner values, in all splits, of steps of up to this number of tokens."""
    return (tokens + 2 * processors * ROWS) * projections * ranks


@triton.jit
def _matrices(tiles, first, projection):
    """The entry of a projection in the table of the tile's adapter."""
    table = tl.load(tiles + tl.program_id(0) * _FIELDS).to(tl.pointer_type(tl.int64))
    return table + (first + projection) * _MATRIX_FIELDS


@triton.jit
def _matrix(entry, dtype: tl.constexpr):
    """The matrix whose address is at `entry`."""
    return tl.multiple_of(tl.load(entry).to(tl.pointer_type(dtype)), 16)


@triton.jit(do_not_specialize=["first", "steps_of_split", "split_stride"])
def _shrink_tokens(
    x,  # [tokens, inputs]
    order,  # [tokens]
    tiles,  # [tiles, 3]
    inner,  # [splits, tokens, projections, RANK_ROOM]
    first,
    inputs,
    steps_of_split,
    x_stride,
    split_stride,
    RANK_ROOM: tl.constexpr,
    TILE_K: tl.constexpr,
):
    count = tl.load(tiles + tl.program_id(0) * _FIELDS + 2).to(tl.int32)
    if count == 0:
        return
    projection, split = tl.program_id(1), tl.program_id(2)
    entry = _matrices(tiles, first, projection)
    ranks = tl.load(entry + 2).to(tl.int32)
    down = _matrix(entry, x.dtype.element_ty)
    lane, k = tl.arange(0, _ROWS), tl.arange(0, TILE_K)
    place = tl.load(tiles + tl.program_id(0) * _FIELDS + 1).to(tl.int32) + lane
    token = tl.load(order + place, mask=lane < count, other=0)
    from_x = x + token.to(tl.int64)[:, None] * x_stride
    begin = split * steps_of_split * TILE_K
    end = tl.minimum(begin + steps_of_split * TILE_K, inputs)
    to = inner + split * split_stride + (place * tl.num_programs(1) + projection)[:, None] * RANK_ROOM
    for first_rank in tl.range(0, ranks, _RANKS):
        rank = first_rank + tl.arange(0, _RANKS)
        sums = tl.zeros([_ROWS, _RANKS], tl.float32)
        for first_input in tl.range(begin, end, TILE_K):
            at = first_input + k
            values = tl.load(from_x + at[None, :], mask=(lane < count)[:, None] & (at < end)[None, :], other=0.0)
            from_down = down + rank[None, :] * inputs + at[:, None]
            factors = tl.load(from_down, mask=(rank < ranks)[None, :] & (at < end)[:, None], other=0.0)
            sums = tl.dot(values, factors, sums, input_precision="ieee")
        tl.store(to + rank[None, :], sums, mask=(lane < count)[:, None])


@triton.jit(do_not_specialize=["first", "splits", "split_stride"])
def _expand_ranks(
    inner,  # [splits, tokens, projections, RANK_ROOM]
    order,  # [tokens]
    tiles,  # [tiles, 3]
    out,  # [tokens, outputs of all projections]
    first,
    splits,
    split_stride,
    out_stride,
    EVEN: tl.constexpr,
    RANK_ROOM: tl.constexpr,
    TILE_N: tl.constexpr,
):
    count = tl.load(tiles + tl.program_id(0) * _FIELDS + 2).to(tl.int32)
    if count == 0:
        return
    projection = tl.program_id(2)
    entry = _matrices(tiles, first, projection)
    ranks, outputs = tl.load(entry + 2).to(tl.int32), tl.load(entry + 4).to(tl.int32)
    if (ranks == 0) | (tl.program_id(1) * TILE_N >= outputs):
        return
    up, first_output = _matrix(entry + 1, out.dtype.element_ty), tl.load(entry + 3).to(tl.int32)
    if EVEN:
        outputs, first_output = tl.multiple_of(outputs, _ALIGNED), tl.multiple_of(first_output, _ALIGNED)
    up_stride = tl.cdiv(outputs, _ALIGNED) * _ALIGNED
    lane, n = tl.arange(0, _ROWS), tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    present = (lane < count)[:, None]
    place = tl.load(tiles + tl.program_id(0) * _FIELDS + 1).to(tl.int32) + lane
    token = tl.load(order + place, mask=lane < count, other=0)
    given = inner + (place * tl.num_programs(2) + projection)[:, None] * RANK_ROOM
    sums = tl.zeros([_ROWS, TILE_N], tl.float32)
    for first_rank in tl.range(0, ranks, _RANKS):
        rank = first_rank + tl.arange(0, _RANKS)
        values = tl.zeros([_ROWS, _RANKS], tl.float32)
        for split in tl.range(0, splits):
            values += tl.load(given + split * split_stride + rank[None, :], mask=present, other=0.0)
        from_up = up + rank[:, None] * up_stride + n[None, :]
        factors = tl.load(from_up, mask=(rank < ranks)[:, None] & (n < up_stride)[None, :], other=0.0)
        sums = tl.dot(values.to(factors.dtype), factors, sums, input_precision="ieee")
    at = out + token.to(tl.int64)[:, None] * out_stride + first_output + n[None, :]
    inside = present & (n < outputs)[None, :]
    total = tl.load(at, mask=inside, other=0.0).to(tl.float32) + sums
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)


def add(
    x: torch.Tensor, out: torch.Tensor, layer: LowRankLayer, rows: AdaptedRows, shrinking: Configuration,
    expanding: Configuration,
) -> None:  # fmt: skip
    """out += B (A x), for each token by its adapter.

    x [tokens, inputs], out [tokens, outputs], neighbours in a row contiguous; matrices have the type of x and out.
    Sums in float32; inner values are rounded to that type. Tiles: TILE_K inputs of A, TILE_N outputs of B."""
    (tokens, inputs), count, ranks = x.shape, len(rows.tiles), rows.ranks
    tile_k, tile_n, projections = shrinking.tiles["TILE_K"], expanding.tiles["TILE_N"], layer.projections
    splits = rows.splits(inputs, projections)
    steps = triton.cdiv(triton.cdiv(inputs, tile_k), splits)
    split_stride = tokens * projections * ranks
    _shrink_tokens[(count, projections, splits)](
        x, rows.order, rows.tiles, rows.inner, layer.first, inputs, steps, x.stride(0), split_stride,
        RANK_ROOM=ranks, **shrinking.options,
    )  # fmt: skip
    _expand_ranks[(count, triton.cdiv(layer.widest, tile_n), projections)](
        rows.inner, rows.order, rows.tiles, out, layer.first, splits, split_stride, out.stride(0), EVEN=layer.even,
        RANK_ROOM=ranks, **expanding.options,
    )  # fmt: skip
