"""Rotary embedding and the KV write in torch: one rotation of queries and keys, then one scatter for each."""

import torch

from legato_engine.kernels.torch.float8 import KVScales, encode


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `reference.rotate`, with cos and sin [tokens, 1, pairs] in x's dtype already."""
    pairs = cos.shape[-1]
    first, second = x[..., :pairs], x[..., pairs : 2 * pairs]
    rotated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=rotated[..., :pairs]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=rotated[..., pairs : 2 * pairs]).addcmul_(first, sin)
    rotated[..., 2 * pairs :] = x[..., 2 * pairs :]
    return rotated


def write_kv(
    keys: torch.Tensor, values: torch.Tensor, layer: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor,
    scales: KVScales | None = None,
) -> None:  # fmt: skip
    """As `reference.write_kv`, with each token's block and place in it [tokens] worked out before."""
    if scales is not None:
        layer, keys, values = layer.view(torch.uint8), encode(keys, scales.keys), encode(values, scales.values)
    layer[blocks, 0, :, places] = keys
    layer[blocks, 1, :, places] = values
