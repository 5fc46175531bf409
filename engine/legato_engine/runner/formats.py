"""Which number formats a worker computes in. Follows from the processor's instruction sets, never from a measurement:
two workers on equal machines must choose alike, since they exchange KV.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from legato_engine.backends.cpu.numerics import Float32, Tiles
from legato_engine.backends.cuda import support
from legato_engine.backends.cuda.device import Device
from legato_engine.errors import UnusableFormat
from legato_engine.models.config import ModelConfig
from legato_engine.processor import Processor
from legato_engine.weights.checkpoint import Checkpoint

# Who computes: torch in one dtype; Triton's kernels in one; or kernels for processors: float32 alone, float32 from the
# file's own 4-bit and 8-bit codes, the same with 8-bit activations, that with attention in bfloat16, 8-bit
# activations for 4-bit codes alone, or bfloat16 tiles.
Kernels = Literal["torch", "triton", "float32", "codes", "int8", "int8-bf16", "int8-avx2", "tiles"]
DTYPES = ("auto", "float32", "bfloat16", "float16")
FROM_CODES = ("codes", "int8", "int8-bf16", "int8-avx2")
READS_BOTH = ("float32", *FROM_CODES)  # kernels whose attention reads KV in float32 and in bfloat16


@dataclass(frozen=True, slots=True)
class Formats:
    """`dtype` of weights and activations, `kv` of the arena; `why` is for people.

    With `fallback`, torch's own operators compute; it has the reason: kernels could not be compiled, or do not support
    the model."""

    name: str
    kernels: Kernels
    dtype: torch.dtype
    kv: str
    why: str
    fallback: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"

    def value_bytes(self, checkpoint: Checkpoint, name: str) -> float:
        """Memory that each value of the weight `name` takes."""
        bits = checkpoint.packed_bits(name) or 0
        if self.kernels == "tiles":
            return 2 + (bits / 8 if bits < 8 or name.startswith(("model.embed_tokens", "lm_head")) else 0)
        return bits / 8 if self.kernels in FROM_CODES and bits else self.dtype.itemsize


def choose(
    dtype: str, processor: Processor, gpu: Device | None, config: ModelConfig, block_size: int, fallback: str = ""
) -> Formats:
    """The formats for a setting of DTYPES, case aside, on a GPU if there is one; `fallback` says why it has no kernels.

    Raises ValueError for another setting, UnusableFormat for what a GPU does not compute."""
    name = dtype.lower()
    if name not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported; supported: {', '.join(DTYPES)}")
    if gpu is not None:
        return _on_gpu(name, gpu, config, block_size, fallback)
    misfit = Float32.misfit(config, block_size)
    by_torch = f", by torch's own operators, which are slower: {misfit}" if misfit else ""
    if name != "auto":
        kernels: Kernels = "float32" if name == "float32" and not misfit else "torch"
        why = f"weights, activations and KV in {name}, as asked for{by_torch if name == 'float32' else ''}"
        return Formats(name, kernels, getattr(torch, name), name, why, (misfit or "") if name == "float32" else "")
    if misfit:
        why = f"weights, activations and KV in float32{by_torch} ({processor})"
        return Formats("float32", "torch", torch.float32, "float32", why, misfit)
    untiled = Tiles.misfit(config, block_size) if processor.amx else None
    if processor.amx and untiled is None:
        why = f"bfloat16 tiles, and the file's own codes for one or two rows; KV in bfloat16 ({processor})"
        return Formats("tiles", "tiles", torch.float32, "bfloat16", why)
    slower = f"; not in bfloat16 tiles, which are faster: {untiled}" if untiled else ""
    if processor.vnni:
        form: Kernels = "int8-bf16" if processor.bf16 else "int8"
        kv = "KV in bfloat16" + (", and attention's products with it" if processor.bf16 else "")
        why = f"float32; 8-bit activations times the file's own codes where it has them; {kv}{slower} ({processor})"
        return Formats(form, form, torch.float32, "bfloat16", why)
    if processor.avx2:
        why = f"float32; 8-bit activations times the file's own 4-bit codes where it has them; KV in bfloat16{slower}"
        return Formats("int8-avx2", "int8-avx2", torch.float32, "bfloat16", f"{why} ({processor})")
    why = f"float32, from 4-bit and 8-bit codes where the file has them{slower} ({processor})"
    return Formats("codes", "codes", torch.float32, "float32", why)


def _on_gpu(name: str, gpu: Device, config: ModelConfig, block_size: int, fallback: str) -> Formats:
    if misfit := support.misfit(config, block_size):
        raise UnusableFormat(f"{misfit}; {gpu.chip} computes {support.SUPPORTED}")
    supported = {str(dtype).removeprefix("torch."): dtype for dtype in gpu.dtypes}
    literal = next(iter(supported)) if name == "auto" else name
    if literal not in supported:
        raise UnusableFormat(f"dtype {literal} is not computed by {gpu.chip}; supported: auto, {', '.join(supported)}")
    why = f"weights, activations and KV in {literal} on {gpu.chip}"
    if fallback:
        why = f"{why}, by torch's own operators, which are slower: {fallback}"
        return Formats(f"{literal} by torch", "torch", supported[literal], literal, why, fallback)
    return Formats(literal, "triton", supported[literal], literal, why)


def allowed(chosen: Formats, on_kernel_failure: str) -> Formats:
    """Returns `chosen`. Raises UnusableFormat if torch would replace compiled kernels, and the policy forbids that."""
    if chosen.fallback and on_kernel_failure == "Stop":
        raise UnusableFormat(f"no compiled kernels: {chosen.fallback}; allowed with onKernelFailure Auto or Torch")
    return chosen


def with_kv(chosen: Formats, kv_dtype: str) -> Formats:
    """The same with KV in another format, a setting of DTYPES, case aside. Raises UnusableFormat where it cannot be."""
    kv = kv_dtype.lower()
    if kv in ("auto", chosen.kv):
        return chosen
    if chosen.kernels not in READS_BOTH or kv not in ("float32", "bfloat16"):
        raise UnusableFormat(f"KV cannot be {kv_dtype} with {chosen}; allowed: Auto, {chosen.kv}")
    return replace(chosen, kv=kv, why=f"{chosen.why}; KV in {kv} instead")
