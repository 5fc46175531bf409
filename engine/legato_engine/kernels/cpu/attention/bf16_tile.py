"""Products of attention with AMX, of keys and queries and of weights and values, for the lanes of `bf16_lanes`:
one group of 16, or two. See `reference/attention.md`.

One group takes half the products of two. Memory is given by address. `count` positions are rounded up to 32: the caller
masks the scores of the additional ones, and their values count as 0 here.
"""

from numba import njit

from legato_engine.kernels.cpu.attention.bf16_lanes import LINE
from legato_engine.kernels.cpu.simd.bfloat16 import early_pairs, late_pairs
from legato_engine.kernels.cpu.simd.lanes import prefetch
from legato_engine.kernels.cpu.simd.tiles import add_16, add_32, load_16, load_32, store_16, store_32, zero_32
from legato_engine.kernels.cpu.simd.vector import (
    load,
    store,
    tile_dot_0,
    tile_dot_2,
    tile_load_4,
    tile_load_5,
    tile_load_6,
    tile_store_0,
    tile_store_2,
    tile_zero_0,
    tile_zero_2,
    zero,
)

POSITIONS = 128  # whose scores, weights and values stay in the first cache together
_WEIGHTS = POSITIONS * 32  # bytes of a group's


@njit(cache=True)
def scores(keys, following, to_values, count, dim, groups, queries, to):
    """Lines of `count` positions, rounded up to 32. `keys` are the addresses of 16 keys each, `following` the next
    ones, and `to_values` the distance of values from their keys.
    """
    width = dim * 2
    for half in range(0, (count + 31) // 32 * 2, 2):
        for line in range(0, width * 16, 64):
            prefetch(following[half] + line)
            prefetch(following[half] + to_values + line)
            prefetch(following[half + 1] + line)
            prefetch(following[half + 1] + to_values + line)
        if groups == 1:
            _scores_of_one(keys[half], keys[half + 1], width, queries, to)
        else:
            _scores_of_two(keys[half], keys[half + 1], width, queries, to)
        to += 32 * LINE


@njit(cache=True)
def _scores_of_one(first, second, width, queries, to):
    """Scores of one group, for 16 keys at `first` and 16 at `second`."""
    tile_zero_0()
    tile_zero_2()
    for part in range(0, width, 64):
        tile_load_6(queries + part * 16, 64)
        tile_load_4(first + part, width)
        tile_dot_0()
        tile_load_5(second + part, width)
        tile_dot_2()
    tile_store_0(to, LINE)
    tile_store_2(to + 16 * LINE, LINE)


@njit(cache=True)
def _scores_of_two(first, second, width, queries, to):
    zero_32()
    for part in range(0, width, 64):
        add_32(first + part, second + part, width, queries + part * 16, queries + (width + part) * 16)
    store_32(to, LINE)


@njit(cache=True)
def values(keys, to_values, count, dim, groups, weights, pairs, weighted):
    """Adds the weighted values of `count` positions to `weighted` [lanes, dim], with dimensions in `_pair`'s order."""
    width, tiles = dim * 2, (count + 31) // 32
    for part in range(0, width, 64):
        for tile in range(tiles):
            first, second = keys[2 * tile] + to_values + part, keys[2 * tile + 1] + to_values + part
            _pair(first, second, width, count - tile * 32, pairs + tile * 2048)
        if groups == 1:
            _values_of_one(weights, pairs, tiles, weighted + part * 2, dim * 4)
        else:
            _values_of_two(weights, pairs, tiles, weighted + part * 2, dim * 4)


@njit(cache=True)
def _pair(first, second, width, seen, pairs):
    """Two tiles [16, 16 words] of 32 dimensions: words are values of a position and of the one 16 after it. From the
    position `seen` on, all count as 0: their memory may contain NaN.
    """
    for place in range(16):
        early, late = zero(), zero()
        if place < seen:
            early = load(first)
        if place + 16 < seen:
            late = load(second)
        store(pairs, early_pairs(early, late))
        store(pairs + 1024, late_pairs(early, late))
        first += width
        second += width
        pairs += 64


@njit(cache=True)
def _values_of_one(weights, pairs, tiles, weighted, stride):
    load_16(weighted, stride)
    for tile in range(tiles):
        add_16(weights + tile * 1024, 64, pairs + tile * 2048, pairs + tile * 2048 + 1024)
    store_16(weighted, stride)


@njit(cache=True)
def _values_of_two(weights, pairs, tiles, weighted, stride):
    load_32(weighted, stride)
    for tile in range(tiles):
        at, columns = weights + tile * 1024, pairs + tile * 2048
        add_32(at, at + _WEIGHTS, 64, columns, columns + 1024)
    store_32(weighted, stride)
