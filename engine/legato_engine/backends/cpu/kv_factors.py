"""Factors between keys and values and the numbers in an arena."""

from typing import NamedTuple, Self

import numpy as np
import torch

from legato_engine.backends.cpu.workspace import Array
from legato_engine.kernels.cpu.simd.float8 import READ_SCALE


class KVFactors(NamedTuple):
    """Factors of keys and values when they are read and when they are written: float32 [layers, 2, kv_heads]."""

    reading: Array
    writing: Array

    @classmethod
    def from_scales(cls, layers: int, kv_heads: int, scales: torch.Tensor | None) -> Self:
        """The factors for e4m3 with `scales` [layers, 2, kv_heads]; None: the arena holds floats."""
        if scales is None:
            ones = np.ones((layers, 2, kv_heads), np.float32)
            return cls(ones, ones)
        return cls((scales * READ_SCALE).numpy(), (1 / scales).numpy())
