"""Codes and scales as the kernels read them: panels of 16 outputs, side by side for each input."""

import numpy as np
import torch

COLUMNS = 16  # outputs of a panel


def pack_codes4(codes: torch.Tensor) -> np.ndarray:
    """[out, in] of 0 … 15 as uint32 [out/16, in/8, 16]: 8 inputs of an output in a word, lowest bits first."""
    outputs, inputs = codes.shape
    pairs = codes[:, 0::2] | codes[:, 1::2] << 4
    words = pairs.view(torch.int32).view(outputs // COLUMNS, COLUMNS, inputs // 8).transpose(1, 2)
    return words.contiguous().numpy().view(np.uint32)


def pack_codes8(codes: torch.Tensor) -> np.ndarray:
    """[out, in] of -128 … 127 as int8 [out/16, in, 16]."""
    return _panels(codes.to(torch.int8))


def pack_scales(scales: torch.Tensor) -> np.ndarray:
    """[out, groups] of int8 or float16 as int8, or bits in uint16, [out/16, groups, 16]."""
    if scales.dtype == torch.int8:
        return _panels(scales)
    return _panels(scales.half().view(torch.int16)).view(np.uint16)


def _panels(values: torch.Tensor) -> np.ndarray:
    outputs, width = values.shape
    return values.view(outputs // COLUMNS, COLUMNS, width).transpose(1, 2).contiguous().numpy()
