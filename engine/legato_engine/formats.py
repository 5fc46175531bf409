"""Which number formats a worker computes in. Follows from the processor's instruction sets, never from a measurement:
two workers on equal machines must choose alike, since they exchange KV.
"""

from dataclasses import dataclass

import torch

from legato_engine.processor import Processor

DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Formats:
    """`dtype` of weights and activations, `kv` of the arena; `why` is for people."""

    name: str
    dtype: torch.dtype
    kv: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


def choose(dtype: str, processor: Processor, device: torch.device) -> Formats:
    """The formats for a setting of DTYPES, case aside. Raises ValueError for another one."""
    name = dtype.lower()
    if name not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    if name != "auto":
        return Formats(name, getattr(torch, name), name, f"weights, activations and KV in {name}, as asked for")
    if device.type != "cpu":
        return Formats("bfloat16", torch.bfloat16, "bfloat16", f"weights, activations and KV in bfloat16 on {device}")
    return Formats("float32", torch.float32, "float32", f"weights, activations and KV in float32 ({processor})")
