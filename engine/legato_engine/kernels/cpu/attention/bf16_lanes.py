"""The parts of attention with AMX without tiles: queries in the order of a tile, the softmax of lanes, and results. 16
lanes are a group: a tile register has 16 rows or columns.

Memory is given by address. A line of scores is 128 bytes, one position for 32 lanes; weighted values are [lanes, dim].
A word is two bfloat16, and a tile of 16 × 16 words a kilobyte.
"""

import numpy as np
from numba import njit

from legato_engine.kernels.cpu.simd.bfloat16 import first_in_order, last_in_order, narrowed, packed, paired, weight
from legato_engine.kernels.cpu.simd.lanes import across, maximum, multiply, power_of_two, subtract, times
from legato_engine.kernels.cpu.simd.transpose import transpose_16
from legato_engine.kernels.cpu.simd.vector import add, broadcast, load, store

GROUP = 16
LANES = 32
LINE = 128


@njit(cache=True)
def pack_query(query, dim, factor, room):
    """A lane's float32 [dim] times `factor`, to its row of room [dim / 32, 16 lanes, 16 words]."""
    for part in range(0, dim * 4, 128):
        first, second = times(load(query + part), factor), times(load(query + part + 64), factor)
        store(room + part * 8, packed(narrowed(first), narrowed(second)))


@njit(cache=True)
def transpose_queries(room, dim, queries):
    """To queries [dim / 32, 16 words, 16 lanes]."""
    for tile in range(0, dim * 32, 1024):
        transpose_16(room + tile, 64, queries + tile, 64)


@njit(cache=True)
def raise_best(scores, count, best, scale):
    """Raises `best` [16] of a group to the largest score of `count` positions, rounded up to 32; `scale` becomes the
    factor for earlier weights.
    """
    old = load(best)
    a, b, c, d = old, old, old, old
    for _ in range(0, (count + 31) // 32 * 32, 4):  # four chains: each maximum waits for the last one of its chain
        a, b = maximum(load(scores), a), maximum(load(scores + LINE), b)
        c, d = maximum(load(scores + 2 * LINE), c), maximum(load(scores + 3 * LINE), d)
        scores += 4 * LINE
    most = maximum(maximum(a, b), maximum(c, d))
    store(best, most)
    store(scale, power_of_two(subtract(old, most)))


@njit(cache=True)
def rescale(scale, lanes, dim, total, weighted):
    """Scales the earlier results of a group's first `lanes`: total [16, 16] and weighted [16, dim]."""
    for _ in range(lanes):
        factor = broadcast(scale)
        store(total, multiply(load(total), factor))
        for at in range(weighted, weighted + dim * 4, 64):
            store(at, multiply(load(at), factor))
        scale += 4
        total += 64
        weighted += dim * 4


@njit(cache=True)
def weigh(scores, count, lanes, best, total, transposed, weights):
    """Weights [count / 32, 16 lanes, 16 words] of a group's first `lanes`; a word is a position and the one 16 after
    it. total [16, 16] grows by the rounded ones, in 16 sums for each lane; `transposed` has room for 32 registers.
    """
    for _ in range(0, count, 32):
        transpose_16(scores, LINE, transposed, 64)
        transpose_16(scores + 16 * LINE, LINE, transposed + 1024, 64)
        for lane in range(lanes):
            at, most = lane * 64, broadcast(best + lane * 4)
            first = weight(subtract(load(transposed + at), most))
            second = weight(subtract(load(transposed + 1024 + at), most))
            store(weights + at, paired(first, second))
            store(total + at, add(load(total + at), add(first, second)))
        scores += 32 * LINE
        weights += 1024


@njit(cache=True, error_model="numpy")  # a sum of weights may be 0 or NaN
def put_back(weighted, total, dim, out):
    """Writes a lane's weighted [dim], divided by the sum of total [16], as bfloat16 in the original order."""
    factor = np.float32(1) / across(load(total))
    for part in range(0, dim * 4, 128):
        a, b = load(weighted + part), load(weighted + part + 64)
        first, last = times(first_in_order(a, b), factor), times(last_in_order(a, b), factor)
        store(out + part // 2, packed(narrowed(first), narrowed(last)))
