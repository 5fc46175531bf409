"""Reference for KV in e4m3: see `reference/float8.md`. Codes are uint8."""

import torch

NAN = 0x7F
NUMBERS = torch.tensor(
    [code / 512 if code < 8 else (1 + code % 8 / 8) * 2.0 ** (code // 8 - 7) for code in range(NAN)],
    dtype=torch.float64,
)


def encode(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The codes of x, divided by `scale`, which broadcasts."""
    scaled = x.float() * (1 / scale)
    sizes = scaled.double().abs().nan_to_num(0).clamp(max=NUMBERS[-1]).contiguous()
    above = torch.searchsorted(NUMBERS, sizes).clamp(min=1)
    below = above - 1
    near, far = sizes - NUMBERS[below], NUMBERS[above] - sizes
    code = torch.where((far < near) | ((far == near) & (below % 2 == 1)), above, below)
    code = torch.where(scaled.isfinite(), code, NAN)
    return (code + 128 * scaled.signbit()).to(torch.uint8)


def decode(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The numbers of codes in float32, times `scale`, which broadcasts."""
    sizes = torch.cat((NUMBERS, torch.tensor([torch.nan])))[(codes & 127).long()]
    return torch.where(codes > 127, -sizes, sizes).float() * scale
