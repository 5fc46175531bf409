"""KV in e4m3 (float8_e4m3fn): see `reference/float8.md`."""

from typing import NamedTuple

import torch

_LARGEST = 448.0


class KVScales(NamedTuple):
    """Scales of a layer's keys and values, float32 [kv_heads]."""

    keys: torch.Tensor
    values: torch.Tensor


def encode(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """As `reference.encode`, for x [tokens, kv_heads, dim] and scales [kv_heads]."""
    scaled = x.float() * (1 / scales)[:, None]
    saturated = scaled.clamp(-_LARGEST, _LARGEST).masked_fill_(scaled.isinf(), torch.nan)
    return saturated.to(torch.float8_e4m3fn).view(torch.uint8)
