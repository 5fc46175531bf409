"""Makes the work lists of a step on the device: lane tiles with their tiles of KV, and parts to combine afterwards."""

import triton
import triton.language as tl

QUERIES = tl.constexpr(8)  # a row with at most this many decodes: its KV may be split
FIELDS = tl.constexpr(8)  # numbers of an entry of a list
_ENTRIES = tl.constexpr(64)  # written at a time
_ROWS = tl.constexpr(256)  # read at a time


@triton.jit
def _row(starts, lengths, row, rows):
    known = row < rows
    start = tl.load(starts + row, mask=known, other=0)
    queries = tl.load(starts + row + 1, mask=known, other=0) - start
    return start, queries, tl.load(lengths + row, mask=known, other=0)


@triton.jit
def _first_tile(position, window, TILE_N: tl.constexpr):
    """The tile with the first position that a query sees."""
    return position * 0 if window is None else tl.maximum(position - window + 1, 0) // TILE_N


@triton.jit
def _decoded(queries, length, window, GROUP: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr):
    """First tile, tiles and lane tiles of a row; a row that does not decode has 0 lane tiles."""
    first = _first_tile(length - queries, window, TILE_N)
    lane_tiles = tl.where(queries <= QUERIES, tl.cdiv(queries * GROUP, TILE_M), 0)
    return first, tl.cdiv(length, TILE_N) - first, lane_tiles


@triton.jit
def _prompt_tiles(queries, GROUP: tl.constexpr, TILE_M: tl.constexpr):
    return tl.where(queries > QUERIES, tl.cdiv(queries * GROUP, TILE_M), 0)


@triton.jit
def _write(at, mask, lane, begin, end, slot, start, queries, length, row):
    """An item: `queries` of a row from token `start` on, of which a tile of lanes attends to tiles `begin … end`."""
    tl.store(at, row, mask=mask)
    tl.store(at + 1, lane, mask=mask)
    tl.store(at + 2, begin, mask=mask)
    tl.store(at + 3, end, mask=mask)
    tl.store(at + 4, slot, mask=mask)
    tl.store(at + 5, start, mask=mask)
    tl.store(at + 6, queries, mask=mask)
    tl.store(at + 7, length, mask=mask)


@triton.jit
def _longest_part(
    starts, lengths, rows, window, parts, shortest, GROUP: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr
):
    """The maximum of tiles of a part, so that all rows together have about `parts`."""
    total = 0
    for begin in range(0, rows, _ROWS):
        _, queries, length = _row(starts, lengths, begin + tl.arange(0, _ROWS), rows)
        _, tiles, lane_tiles = _decoded(queries, length, window, GROUP, TILE_M, TILE_N)
        total += tl.sum(tiles * lane_tiles)
    return tl.maximum(tl.cdiv(total, parts), shortest)


@triton.jit
def _entries_before(
    starts, lengths, mine, window, longest, GROUP: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
    PROMPT_TILE_M: tl.constexpr,
):  # fmt: skip
    """Items, slots, joins and prompts of the rows before `mine`."""
    item, slot, join, prompt = 0, 0, 0, 0
    for begin in range(0, mine, _ROWS):
        row = begin + tl.arange(0, _ROWS)
        _, queries, length = _row(starts, lengths, row, mine)
        _, tiles, lane_tiles = _decoded(queries, length, window, GROUP, TILE_M, TILE_N)
        split = tl.cdiv(tiles, longest)
        item += tl.sum(lane_tiles * split)
        slot += tl.sum(tl.where(split > 1, lane_tiles * split, 0))
        join += tl.sum(tl.where(split > 1, lane_tiles, 0))
        prompt += tl.sum(_prompt_tiles(queries, GROUP, PROMPT_TILE_M))
    return item, slot, join, prompt


@triton.jit
def _write_joins(joins, join, joined, start, queries, slot, split, TILE_M: tl.constexpr):
    for begin in range(0, joined, _ENTRIES):
        entry = begin + tl.arange(0, _ENTRIES)
        at, mask = joins + (join + entry) * FIELDS, entry < joined
        tl.store(at, start, mask=mask)
        tl.store(at + 1, queries, mask=mask)
        tl.store(at + 2, entry * TILE_M, mask=mask)
        tl.store(at + 3, slot + entry * split, mask=mask)
        tl.store(at + 4, split, mask=mask)


@triton.jit(do_not_specialize=["rows", "parts", "shortest"])  # compiled once for all sizes of a step
def make_lists(
    starts,  # [rows + 1]
    lengths,  # [rows]
    rows,
    window,  # None: all is seen
    parts,  # the maximum of parts, in addition to one for each lane tile
    shortest,  # tiles of a part
    counts,  # [3]: entries of the lists
    items,  # [.., FIELDS]
    joins,  # [.., FIELDS]: start, queries, first lane, first slot, slots
    prompts,  # [.., FIELDS]
    GROUP: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    PROMPT_TILE_M: tl.constexpr,
    PROMPT_TILE_N: tl.constexpr,
):
    """Program r writes the entries of row r after the entries of earlier rows, which it counts itself."""
    mine = tl.program_id(0)
    longest = _longest_part(starts, lengths, rows, window, parts, shortest, GROUP, TILE_M, TILE_N)
    item, slot, join, prompt = _entries_before(
        starts, lengths, mine, window, longest, GROUP, TILE_M, TILE_N, PROMPT_TILE_M
    )

    start, queries, length = _row(starts, lengths, mine, rows)
    first, tiles, lane_tiles = _decoded(queries, length, window, GROUP, TILE_M, TILE_N)
    split = tl.cdiv(tiles, longest)
    for begin in range(0, lane_tiles * split, _ENTRIES):
        entry = begin + tl.arange(0, _ENTRIES)
        at, mask = items + (item + entry) * FIELDS, entry < lane_tiles * split
        part = entry % split
        where = tl.where(split > 1, slot + entry, -1)
        lane = entry // split * TILE_M
        _write(at, mask, lane, first + part * tiles // split, first + (part + 1) * tiles // split, where,
               start, queries, length, mine)  # fmt: skip
    joined = tl.where(split > 1, lane_tiles, 0)
    _write_joins(joins, join, joined, start, queries, slot, split, TILE_M)

    own = _prompt_tiles(queries, GROUP, PROMPT_TILE_M)
    for begin in range(0, own, _ENTRIES):
        entry = begin + tl.arange(0, _ENTRIES)
        at, mask = prompts + (prompt + entry) * FIELDS, entry < own
        lane = (own - 1 - entry) * PROMPT_TILE_M  # the longest first
        position = length - queries + lane // GROUP
        last = tl.minimum(length - queries + (lane + PROMPT_TILE_M - 1) // GROUP, length - 1)
        _write(at, mask, lane, _first_tile(position, window, PROMPT_TILE_N), last // PROMPT_TILE_N + 1, -1,
               start, queries, length, mine)  # fmt: skip

    if mine == rows - 1:
        tl.store(counts, item + lane_tiles * split)
        tl.store(counts + 1, join + joined)
        tl.store(counts + 2, prompt + own)
