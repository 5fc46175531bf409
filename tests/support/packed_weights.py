"""Random matrices as codes and scales, as files of each quantized type hold them."""

import torch

from legato_engine.weights.packed import Packed, Scales

TYPES = "Q4_1", "Q4_K", "Q8_0", "Q5_1", "Q5_K", "Q6_K"


def packed(kind: str, outputs: int, inputs: int, draw: torch.Generator | None = None) -> Packed:
    """Groups of 32 inputs, but of 16 for Q6_K; K types have a float16 factor for the scales of 256 inputs."""

    def halves(columns: int, by: float = 1) -> torch.Tensor:
        return ((torch.rand(outputs, columns, generator=draw) * 0.02 + 0.001) * by).half()

    def scales(by: float = 1) -> Scales:
        groups = inputs // (16 if kind == "Q6_K" else 32)
        if not kind.endswith("K"):
            return Scales(halves(groups, by))
        values = torch.randint(1, 64, (outputs, groups), dtype=torch.int8, generator=draw)
        return Scales(values, halves(inputs // 256, by / 32))

    shape = outputs, inputs
    if kind.startswith("Q4"):
        codes = torch.randint(0, 16, shape, dtype=torch.uint8, generator=draw)
        return Packed(4, codes, scales(), scales(1 if kind == "Q4_K" else -8))
    codes = torch.randint(-128, 128, shape, dtype=torch.int8, generator=draw)
    if kind == "Q5_K":
        codes &= 31
    return Packed(8, codes, scales(1 / 16), scales() if kind.startswith("Q5") else None)
