"""Which number formats a worker computes in. Follows from the processor's instruction sets, never from a measurement:
two workers on equal machines must choose alike, since they exchange KV.
"""

from dataclasses import dataclass

import torch

from legato_engine.models.config import ModelConfig
from legato_engine.models.llama_bf16 import fits
from legato_engine.processor import Processor

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Formats:
    """`dtype` of weights and activations, `kv` of the arena; `why` is for people."""

    name: str
    tiles: bool  # computed by the kernels for bfloat16 and 4 bit
    dtype: torch.dtype
    kv: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def choose(dtype: str, processor: Processor, device: torch.device, config: ModelConfig, block_size: int) -> Formats:
    """The formats for a setting of DTYPES, case aside. Raises ValueError for another one."""
    name = dtype.lower()
    if name not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    if name != "auto":
        return Formats(name, False, getattr(torch, name), name, f"weights, activations and KV in {name}, as asked for")
    if device.type != "cpu":
        why = f"weights, activations and KV in bfloat16 on {device}"
        return Formats("bfloat16", False, torch.bfloat16, "bfloat16", why)
    if processor.amx and fits(config, block_size):
        why = f"bfloat16 tiles, and 4-bit codes for single rows where the file has them; KV in bfloat16 ({processor})"
        return Formats("tiles", True, torch.float32, "bfloat16", why)
    return Formats("float32", False, torch.float32, "float32", f"weights, activations and KV in float32 ({processor})")
