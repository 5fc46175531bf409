"""Emulated tiles compute what a processor with AMX does, and tell what it would refuse."""

import emulated_tiles
import numpy as np
import pytest
import torch
from emulated_tiles import INSTRUCTIONS
from numba import njit

from legato_engine.kernels.linear.numba_tiles import SHAPES
from legato_engine.kernels.vector import address, load, store

configure, release = INSTRUCTIONS.tile_configure, INSTRUCTIONS.tile_release
zero, dot, keep = INSTRUCTIONS.tile_zero_1, INSTRUCTIONS.tile_dot_1, INSTRUCTIONS.tile_store_1
load_sums, load_rows, load_columns = INSTRUCTIONS.tile_load_1, INSTRUCTIONS.tile_load_4, INSTRUCTIONS.tile_load_7
dot_bf16 = INSTRUCTIONS.dot_bf16


def shapes(rows=16, pairs=16, columns=16):
    """Of tiles 1, 4 and 7, [rows, columns], [rows, pairs] and [pairs, columns]; the others are as usual."""
    found = SHAPES.copy()
    for tile, height, width in ((1, rows, columns), (4, rows, pairs), (7, pairs, columns)):
        found[16 + 2 * tile], found[48 + tile] = 4 * width, height
    return found


def bits(x):
    return x.bfloat16().view(torch.int16).numpy().view(np.uint16)


@njit
def multiply(shapes, a, b, sums):
    configure(address(shapes))
    load_rows(address(a), 64)
    load_columns(address(b), 64)
    load_sums(address(sums), 64)
    dot()
    keep(address(sums), 64)
    release()


@pytest.mark.parametrize(("rows", "pairs", "columns"), [(16, 16, 16), (5, 16, 16), (16, 3, 16), (16, 16, 7), (1, 1, 1)])
def test_products(rows, pairs, columns):
    """Of what the configured shapes hold, and nothing else is read or written."""
    a, b, sums = torch.randn(16, 32).bfloat16(), torch.randn(16, 16, 2).bfloat16(), torch.randn(16, 16)
    right = sums.double()
    inner = torch.einsum("rkh,kch->rc", a.view(16, 16, 2)[:rows, :pairs].double(), b[:pairs, :columns].double())
    right[:rows, :columns] += inner
    a.view(16, 16, 2)[rows:], a.view(16, 16, 2)[:, pairs:], b[pairs:], b[:, columns:] = (torch.nan,) * 4

    multiply(shapes(rows, pairs, columns), bits(a), bits(b), sums.numpy())

    torch.testing.assert_close(sums.double(), right, atol=1e-4, rtol=1e-5)
    assert torch.equal(sums[rows:], right[rows:].float())
    assert emulated_tiles.faults() == []


@njit
def add_products(total, a, b):
    store(address(total), dot_bf16(load(address(total)), load(address(a)), load(address(b))))


def test_products_of_registers():
    a, b, total = torch.randn(16, 2).bfloat16(), torch.randn(16, 2).bfloat16(), torch.randn(16)
    right = total.double() + (a.double() * b.double()).sum(1)

    add_products(total.numpy(), bits(a), bits(b))

    torch.testing.assert_close(total.double(), right, atol=1e-5, rtol=1e-6)


@njit
def misuse(which, shapes, room):
    if which != "not configured":
        configure(address(shapes))
    if which == "configured twice":
        configure(address(shapes))
    if which != "empty":
        load_rows(address(room), 64)
    load_columns(address(room), 64)
    zero()
    dot()
    if which != "held":
        release()
    if which == "released twice":
        release()


MISUSES = {
    "none": (shapes(), []),
    "not configured": (shapes(), ["tiles are not configured", "released though not configured"]),
    "configured twice": (shapes(), ["configured again"]),
    "empty": (shapes(), ["nothing was put into the tile"]),
    "held": (shapes(), ["not released"]),
    "released twice": (shapes(), ["released though not configured"]),
    "no such shape": (shapes(rows=17), ["no such shape of a tile", "shapes do not fit"]),
}


@pytest.mark.parametrize("which", MISUSES)
def test_misuse_is_told(which):
    given, told = MISUSES[which]

    misuse(which, given, np.zeros((16, 32), np.uint16))

    assert emulated_tiles.faults() == told
    assert emulated_tiles.faults() == []


@pytest.mark.parametrize("tile", [1, 4, 7])
def test_products_of_tiles_whose_shapes_do_not_fit_are_told(tile):
    for place, size in ((16 + 2 * tile, 32), (48 + tile, 8)):
        given = shapes()
        given[place] = size

        misuse("", given, np.zeros((16, 32), np.uint16))

        assert emulated_tiles.faults() == ["shapes do not fit"]
