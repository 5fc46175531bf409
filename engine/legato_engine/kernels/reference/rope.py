"""Reference for the rotary embedding and the KV write: see `reference/rope.md`."""

import torch

from legato_engine.kernels.reference.float8 import encode


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [tokens, heads, dim]; cos, sin [tokens, pairs] of each token's position. Pairs are (i, i + pairs); numbers of a
    head after them are not rotated."""
    pairs = cos.shape[-1]
    first, second, rest = x.float().tensor_split((pairs, 2 * pairs), -1)
    cos, sin = cos[:, None].float(), sin[:, None].float()
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1).to(x.dtype)


def write_kv(
    keys: torch.Tensor,
    values: torch.Tensor,
    layer: torch.Tensor,
    slots: torch.Tensor,
    scales: torch.Tensor | None = None,
) -> None:
    """Puts keys and values [tokens, kv_heads, dim] into `layer` [blocks, 2, kv_heads, block_size, dim].

    Token t goes to block `slots[t] // block_size`, place `slots[t] % block_size`. With `scales` [2, kv_heads], the
    layer holds codes of e4m3, uint8.
    """
    if scales is not None:
        keys, values = (encode(x, by[:, None]) for x, by in zip((keys, values), scales, strict=True))
    size = layer.shape[3]
    for token, slot in enumerate(slots.tolist()):
        layer[slot // size, 0, :, slot % size] = keys[token]
        layer[slot // size, 1, :, slot % size] = values[token]
