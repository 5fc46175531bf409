"""Numbers of four bits: E2M1 of the OCP Microscaling Formats, a sign, two bits of exponent and one of mantissa."""

import torch

_DOUBLED = torch.tensor([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=torch.int8)


def doubled(codes: torch.Tensor) -> torch.Tensor:
    """Codes uint8 0 … 15 → twice their numbers, int8."""
    return _DOUBLED.to(codes.device)[codes.int()]


def floats(codes: torch.Tensor) -> torch.Tensor:
    """Codes uint8 0 … 15 → their numbers, float32."""
    return doubled(codes).float() / 2
