"""Emulated tiles report what a processor with AMX would refuse. That they compute what it does, kernels show."""

import emulated_tiles
import numpy as np
import pytest
from emulated_tiles import INSTRUCTIONS
from numba import njit

from legato_engine.kernels.linear.numba_tiles import SHAPES
from legato_engine.kernels.vector import address

configure, release = INSTRUCTIONS.tile_configure, INSTRUCTIONS.tile_release
zero, dot = INSTRUCTIONS.tile_zero_1, INSTRUCTIONS.tile_dot_1
load_rows, load_columns = INSTRUCTIONS.tile_load_4, INSTRUCTIONS.tile_load_7


@njit
def misuse(which, shapes, room):
    """A product of tiles 4 and 7, added to tile 1, but for one mistake."""
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


@pytest.mark.parametrize(
    ("which", "changes", "faults"),
    [
        ("none", {}, []),
        ("not configured", {}, ["tiles are not configured", "released though not configured"]),
        ("configured twice", {}, ["configured again"]),
        ("empty", {}, ["nothing was put into the tile"]),
        ("held", {}, ["not released"]),
        ("released twice", {}, ["released though not configured"]),
        ("17 rows", {49: 17}, ["no such shape of a tile", "shapes do not fit"]),
        *(("32 bytes", {16 + 2 * tile: 32}, ["shapes do not fit"]) for tile in (1, 4, 7)),
        *(("8 rows", {48 + tile: 8}, ["shapes do not fit"]) for tile in (1, 4, 7)),
    ],
)
def test_misuse_is_reported_once(which, changes, faults):
    emulated_tiles.compile_tiles()
    shapes = SHAPES.copy()
    shapes[list(changes)] = list(changes.values())

    misuse(which, shapes, np.zeros((16, 32), np.uint16))

    assert emulated_tiles.faults() == faults
    assert emulated_tiles.faults() == []
