"""Matrices of any multiples of 16 are transposed, and what is beside them stays."""

import numpy as np
import pytest

from legato_engine.kernels.transpose import transpose


@pytest.mark.parametrize(("rows", "columns"), [(16, 16), (32, 96), (64, 32)])
def test_transpose(rows, columns):
    source = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    target = np.full(rows * columns + 1, 7, np.float32)

    transpose(source.ctypes.data, rows, columns, target.ctypes.data)

    assert np.array_equal(target[:-1].reshape(columns, rows), source.T)
    assert target[-1] == 7
