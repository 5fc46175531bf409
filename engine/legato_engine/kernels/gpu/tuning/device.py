"""The device that kernels are tuned for, and the sizes of steps and models."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from legato_engine.kernels.gpu.attention.made_step import Shape
from legato_engine.kernels.gpu.chips import has_float8
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.kernels.gpu.tuning.search import TuningTrial

WARPS = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Rows that decode, tokens of their contexts, tokens of a prompt and of a step, and widths of a model."""

    head_dims: tuple[int, ...] = (64, 128, 256)
    groups: tuple[int, ...] = (1, 4, 8)
    block_sizes: tuple[int, ...] = (16, 32, 64)
    kv_heads: int = 8
    rows: int = 64
    context: int = 4096
    prompt: int = 4096
    tokens: int = 2048
    hidden: int = 4096
    inner: int = 14336
    words: int = 1 << 18  # of 64 bits, in a block
    blocks: int = 64
    code_rows: tuple[int, ...] = (16, 32, 64)  # of products with quantized weights
    code_bits: tuple[int, ...] = (4, 8)
    experts: tuple[int, int] = (128, 8)  # of a layer, and of a token
    expert_hidden: int = 2048
    expert_inner: int = 768
    expert_rows: tuple[int, ...] = (16, 32, 64, 128)  # of a block of tokens
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True, slots=True)
class TuningDevice:
    """The device that kernels are tuned for."""

    device: torch.device
    chip: str
    processors: int
    sizes: Sizes = Sizes()

    @property
    def float8(self) -> bool:
        """True if its kernels multiply FP8."""
        return self.chip == "interpreter" or has_float8(self.chip)

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=self.sizes.dtype, device=self.device)

    def seeded(self, make: Callable[[Configuration], TuningTrial]) -> Callable[[Configuration], TuningTrial]:
        """The same random numbers for every configuration."""

        def made(config: Configuration) -> TuningTrial:
            torch.manual_seed(0)
            return make(config)

        return made

    def shape(self, head_dim: int, group: int, block_size: int) -> Shape:
        sizes = self.sizes
        return Shape(head_dim, group, sizes.kv_heads, block_size, sizes.dtype, self.device, self.processors)
