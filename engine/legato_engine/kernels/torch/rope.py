"""Rotary embedding and the KV write in torch: one rotation of queries and keys, then one scatter for each."""

import torch


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """As `reference.rotate`, with cos and sin [tokens, 1, dim/2] in x's dtype already."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    torch.mul(first, cos, out=rotated[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=rotated[..., half:]).addcmul_(first, sin)
    return rotated


def write_kv(
    keys: torch.Tensor, values: torch.Tensor, layer: torch.Tensor, blocks: torch.Tensor, places: torch.Tensor
) -> None:
    """As `reference.write_kv`, with each token's block and place in it [tokens] worked out before."""
    layer[blocks, 0, :, places] = keys
    layer[blocks, 1, :, places] = values
