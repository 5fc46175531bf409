"""Attention over the paged arena in Triton: prompts, and decoding rows, whose KV is split if that fills the chip."""

from dataclasses import dataclass
from math import e, log2

import torch
import triton

from legato_engine.kernels.gpu.attention.combine import LANES, combine_parts
from legato_engine.kernels.gpu.attention.plan import FIELDS, QUERIES, make_lists
from legato_engine.kernels.gpu.attention.tiles import attend_items
from legato_engine.kernels.gpu.configurations import Configuration

DECODE_QUERIES: int = QUERIES.value  # a row with more query tokens is a prompt, others decode
BLOCK_SIZES = (16, 32, 64)
MOST_HEAD_DIM = 256
MOST_GROUP = 16  # query heads that share a KV head
_LEAST_TILE_M, _MOST_TILE_M = 16, 128
_MOST_SPLITS = 8  # parts of decoding rows, over all KV heads, for each processor of the chip


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """Sizes of attention and of its arena. Raises ValueError for sizes that the kernels do not support."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int

    def __post_init__(self) -> None:
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"unsupported block size: {self.block_size} (allowed: 16, 32, 64)")
        if not 16 <= self.head_dim <= MOST_HEAD_DIM or self.head_dim % 8:
            allowed = f"multiples of 8 from 16 to {MOST_HEAD_DIM}"
            raise ValueError(f"unsupported head_dim: {self.head_dim} ({allowed})")
        if self.heads % self.kv_heads or self.group > MOST_GROUP:
            allowed = f"1 to {MOST_GROUP} for each KV head"
            raise ValueError(f"unsupported heads: {self.heads} for {self.kv_heads} KV heads ({allowed})")

    @property
    def group(self) -> int:
        """The query heads that share a KV head."""
        return self.heads // self.kv_heads


class Work:
    """Device memory for the work lists of one step and for the parts of split rows; allocated once.

    The lists are valid for one window at a time. `processors` is the number of streaming multiprocessors.
    """

    def __init__(
        self, max_rows: int, max_tokens: int, sizes: AttentionSizes, device: torch.device | str, processors: int
    ) -> None:
        self.max_rows, self.max_tokens, self.processors = max_rows, max_tokens, processors
        kv_heads = self.kv_heads = sizes.kv_heads
        self.group, self.head_dim = sizes.group, sizes.head_dim
        self.block_size, self.padded = sizes.block_size, triton.next_power_of_2(sizes.head_dim)
        most = self._parts(_MOST_SPLITS)
        self.lanes = 2 * max(most * _LEAST_TILE_M, _MOST_TILE_M)  # of every KV head, in all slots together
        self.partials = torch.empty(self.lanes * kv_heads * self.padded, dtype=torch.float32, device=device)
        self.stats = torch.empty(self.lanes * kv_heads * 2, dtype=torch.float32, device=device)

        def entries(count: int) -> torch.Tensor:
            return torch.zeros(count, FIELDS.value, dtype=torch.int32, device=device)

        self.counts = torch.zeros(3, dtype=torch.int32, device=device)
        self.items = entries(self.lane_tiles(max_rows, max_tokens, _LEAST_TILE_M) + most)
        self.joins = entries(most)
        self.prompts = entries(self.prompt_tiles(max_rows, max_tokens, _LEAST_TILE_M))

    def _parts(self, splits: int) -> int:
        return self.processors * splits // self.kv_heads

    def parts(self, config: Configuration) -> int:
        """The maximum number of parts that all decoding rows are split into, in addition to one for each lane tile.

        Slots of split lane tiles are fewer than twice as many: a part is at most `longest`, and split tiles are longer,
        so that rounding up less than doubles them.
        """
        tile = config.tiles["TILE_M"]
        if not _LEAST_TILE_M <= tile <= _MOST_TILE_M:
            raise ValueError(f"unsupported TILE_M: {tile} ({_LEAST_TILE_M} to {_MOST_TILE_M})")
        return max(1, min(self._parts(config.tiles["SPLITS"]), self.lanes // (2 * tile)))

    def lane_tiles(self, rows: int, tokens: int, tile_m: int) -> int:
        """The maximum number of lane tiles of decoding rows: at most one for each token, as a group fits any tile."""
        return min(tokens, rows * _cdiv(DECODE_QUERIES * self.group, tile_m))

    def prompt_tiles(self, rows: int, tokens: int, tile_m: int) -> int:
        """The maximum number of lane tiles of prompts: each rounds up once, and has more tokens than a decoding row."""
        prompts = min(rows, tokens // (DECODE_QUERIES + 1))
        return (tokens * self.group + prompts * (tile_m - 1)) // tile_m


def plan(
    starts: torch.Tensor,
    lengths: torch.Tensor,
    work: Work,
    window: int | None,
    decode_config: Configuration,
    prefill_config: Configuration,
) -> None:
    """Writes the work lists of a step, by one launch.

    starts [rows + 1] of the rows' query tokens, lengths [rows] of their KV with these tokens; a row without tokens has
    no work. Tiles of `decode_config`: TILE_M lanes, TILE_N positions, SPLITS parts for each processor, and SHORTEST,
    the tiles up to which a row is not split; of `prefill_config` TILE_M and TILE_N. Raises ValueError for more rows
    than `work` has.
    """
    rows = lengths.shape[0]
    if rows > work.max_rows:
        raise ValueError(f"too many rows: {rows} (at most {work.max_rows})")
    make_lists[(rows,)](
        starts, lengths, rows, window, work.parts(decode_config), decode_config.tiles["SHORTEST"],
        work.counts, work.items, work.joins, work.prompts, GROUP=work.group,
        TILE_M=decode_config.tiles["TILE_M"], TILE_N=decode_config.tiles["TILE_N"],
        PROMPT_TILE_M=prefill_config.tiles["TILE_M"], PROMPT_TILE_N=prefill_config.tiles["TILE_N"], num_warps=4,
    )  # fmt: skip


def attend(
    queries: torch.Tensor,
    layer: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    tables: torch.Tensor,
    work: Work,
    window: int | None,
    out: torch.Tensor,
    decode_config: Configuration,
    prefill_config: Configuration,
    prompts: bool,
    kv_scales: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Attention of queries [tokens, heads, dim] to KV in layer [blocks, 2, kv_heads, block_size, dim], into `out`.

    tables [rows, ..] list the rows' blocks. `work` holds the lists that `plan` made of `starts` and `lengths`, with the
    same window and configurations. Without `prompts` no row may have more than DECODE_QUERIES tokens.
    With `kv_scales` float32 [2, kv_heads], the layer holds e4m3: as float8_e4m3fn on chips that convert it
    (`has_float8`), otherwise as uint8. `sinks` float32 [heads] are scores that only the sum of weights includes.
    """
    rows, tokens = lengths.shape[0], queries.shape[0]
    if tokens > work.max_tokens:
        raise ValueError(f"too many tokens: {tokens} (at most {work.max_tokens})")
    tile, parts = decode_config.tiles["TILE_M"], work.parts(decode_config)
    lane_tiles = work.lane_tiles(rows, tokens, tile)
    _attend(
        queries, layer, kv_scales, sinks, tables, work, window, out, decode_config, work.counts, work.items,
        lane_tiles + parts, False,
    )  # fmt: skip
    combine_parts[(work.kv_heads, tile // LANES.value, min(parts, lane_tiles))](
        out, work.partials, work.stats, sinks, work.counts[1:], work.joins, out.stride(0), out.stride(1),
        GROUP=work.group, DIM=work.head_dim, PADDED=work.padded, TILE_M=tile, PARTS=_parts_per_load(work.padded),
        num_warps=4,
    )  # fmt: skip
    if prompts:
        items = work.prompt_tiles(rows, tokens, prefill_config.tiles["TILE_M"])
        _attend(
            queries, layer, kv_scales, sinks, tables, work, window, out, prefill_config, work.counts[2:], work.prompts,
            items, True,
        )  # fmt: skip


def _attend(
    queries: torch.Tensor, layer: torch.Tensor, kv_scales: torch.Tensor | None, sinks: torch.Tensor | None,
    tables: torch.Tensor, work: Work, window: int | None, out: torch.Tensor, config: Configuration,
    count: torch.Tensor, items: torch.Tensor, most: int, full_tiles: bool,
) -> None:  # fmt: skip
    if not most:
        return
    attend_items[(work.kv_heads, most)](
        queries, layer, kv_scales, sinks, tables, out, work.partials, work.stats, count, items, window,
        log2(e) * work.head_dim**-0.5, queries.stride(0), queries.stride(1), *layer.stride()[:4], tables.stride(0),
        out.stride(0), out.stride(1),
        GROUP=work.group, DIM=work.head_dim, PADDED=work.padded, BLOCK=work.block_size,
        TILE_M=config.tiles["TILE_M"], TILE_N=config.tiles["TILE_N"], FULL_TILES=full_tiles,
        num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _parts_per_load(padded: int) -> int:
    """The number of parts whose values fit the registers of four warps."""
    return max(4, min(16, 2048 // padded))
