"""Unpacks blocks of GGUF's quantized types into codes and scales. ggml's `ggml-quants.c` defines the layouts.

Each function takes uint8 [blocks, bytes] and returns codes [blocks, values] and scales by groups. To add a type, write
such a function and add it to KINDS. Tests compare with the `gguf` library.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from legato_engine.weights import e2m1
from legato_engine.weights.grouped import Grouped
from legato_engine.weights.packed import Packed, Scales
from legato_engine.weights.quantization.formats import FP4_GROUP, Element

Type = GGMLQuantizationType
_NAN_EXPONENT = 255  # of MXFP4
Bytes = torch.Tensor


def unpack(kind: Type, rows: Bytes) -> Packed | None:
    """Unpacks rows of a tensor, uint8 [out, bytes]; None if float16 cannot hold the minima of Q4_0 or the scales of
    MXFP4.

    Raises ValueError if a scale or minimum of the file is NaN or infinite."""
    outputs, blocks = len(rows), rows.reshape(-1, GGML_QUANT_SIZES[kind][1])
    if kind is Type.MXFP4 and (blocks[:, 0] == _NAN_EXPONENT).any():
        raise ValueError("a scale is NaN or infinite")
    packed = KINDS[kind].unpack(blocks).each(lambda part: part.view(outputs, -1))
    if kind is Type.MXFP4 and not torch.equal(packed.scale.floats(), _mxfp4_scales(blocks).view(outputs, -1)):
        return None
    if not _finite(packed.scale):
        raise ValueError("a scale is NaN or infinite")
    if packed.minimum is None or _finite(packed.minimum):
        return packed
    if kind is Type.Q4_0:
        return None
    raise ValueError("a minimum is NaN or infinite")


def _finite(scales: Scales) -> bool:
    halves = scales.values if scales.factors is None else scales.factors
    return bool(halves.isfinite().all())


def _halves(blocks: Bytes, first: int, count: int = 1) -> torch.Tensor:
    return blocks[:, first : first + 2 * count].contiguous().view(torch.float16)


def _nibbles(packed: Bytes, run: int) -> Bytes:
    """[blocks, bytes] → [blocks, 2 · bytes]: of every `run` bytes first the low nibbles, then the high ones."""
    runs = packed.view(len(packed), -1, 1, run)
    return torch.cat((runs & 15, runs >> 4), 2).view(len(packed), -1)


def _bit_planes(packed: Bytes, run: int, bits: int) -> Bytes:
    """[blocks, bytes] → values of `bits` each: of every `run` bytes first the lowest bits, then the next ones."""
    runs = packed.view(len(packed), -1, 1, run)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device).view(1, 1, -1, 1)
    return (runs >> shifts & (1 << bits) - 1).view(len(packed), -1)


def _fifth_bits(blocks: Bytes, first: int) -> Bytes:
    """32 bits, lowest first, as uint8 0 or 16."""
    shifts = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    return ((blocks[:, first : first + 4, None] >> shifts & 1) << 4).view(len(blocks), 32)


def _q4_0(blocks: Bytes) -> Packed:
    scale = _halves(blocks, 0)
    return Packed(4, _nibbles(blocks[:, 2:], 16), Scales(scale), Scales(scale * -8))


def _q4_1(blocks: Bytes) -> Packed:
    return Packed(4, _nibbles(blocks[:, 4:], 16), Scales(_halves(blocks, 0)), Scales(_halves(blocks, 2)))


def _q5_0(blocks: Bytes) -> Packed:
    codes = _nibbles(blocks[:, 6:], 16) | _fifth_bits(blocks, 2)
    return Packed(8, codes.view(torch.int8) - 16, Scales(_halves(blocks, 0)))


def _q5_1(blocks: Bytes) -> Packed:
    codes = _nibbles(blocks[:, 8:], 16) | _fifth_bits(blocks, 4)
    return Packed(8, codes.view(torch.int8), Scales(_halves(blocks, 0)), Scales(_halves(blocks, 2)))


def _q8_0(blocks: Bytes) -> Packed:
    return Packed(8, blocks[:, 2:].contiguous().view(torch.int8), Scales(_halves(blocks, 0)))


def _six_bit_scales(blocks: Bytes) -> tuple[Scales, Scales]:
    """Scales and signed minima of K-quants with 8 groups."""
    low, high, mixed = blocks[:, 4:16].view(-1, 3, 4).unbind(1)
    scale = torch.cat((low & 63, mixed & 15 | low >> 2 & 48), 1).view(torch.int8)
    least = torch.cat((high & 63, mixed >> 4 | high >> 2 & 48), 1).view(torch.int8)
    return Scales(scale, _halves(blocks, 0)), Scales(least, -_halves(blocks, 2))


def _q4_k(blocks: Bytes) -> Packed:
    return Packed(4, _nibbles(blocks[:, 16:], 32), *_six_bit_scales(blocks))


def _q5_k(blocks: Bytes) -> Packed:
    codes = _nibbles(blocks[:, 48:], 32) | _bit_planes(blocks[:, 16:48], 32, 1) << 4
    return Packed(8, codes.view(torch.int8), *_six_bit_scales(blocks))


def _q6_k(blocks: Bytes) -> Packed:
    codes = _nibbles(blocks[:, :128], 64) | _bit_planes(blocks[:, 128:192], 32, 2) << 4
    scale = blocks[:, 192:208].contiguous().view(torch.int8)
    return Packed(8, codes.view(torch.int8) - 32, Scales(scale, _halves(blocks, 208)))


def _mxfp4_codes(blocks: Bytes) -> Bytes:
    return _nibbles(blocks[:, 1:], 16)


def _mxfp4_scales(blocks: Bytes) -> torch.Tensor:
    """Half of a block's power of two, float32 [blocks, 1]; 0 if all of the block's numbers are 0."""
    scales = blocks[:, :1].contiguous().view(torch.float8_e8m0fnu).float() / 2
    return scales * (_mxfp4_codes(blocks) & 7).any(1, keepdim=True)


def _mxfp4(blocks: Bytes) -> Packed:
    return Packed(8, e2m1.doubled(_mxfp4_codes(blocks)), Scales(_mxfp4_scales(blocks).half()))


def grouped_fp4(rows: Bytes) -> Grouped:
    """Rows of MXFP4, uint8 [out, bytes], with their own codes and scales."""
    blocks = rows.reshape(len(rows), -1, GGML_QUANT_SIZES[Type.MXFP4][1])
    codes = _mxfp4_codes(blocks.flatten(0, 1)).view(len(rows), -1)
    return Grouped(Element.FLOAT4, codes, FP4_GROUP, Scales(blocks[:, :, 0].contiguous().view(torch.float8_e8m0fnu)))


@dataclass(frozen=True, slots=True)
class BlockType:
    """A quantized type: its function, and the bits per value in memory, including scales."""

    unpack: Callable[[Bytes], Packed]
    bits: float


KINDS = {
    Type.Q4_0: BlockType(_q4_0, 5),
    Type.Q4_1: BlockType(_q4_1, 5),
    Type.Q5_0: BlockType(_q5_0, 8.5),
    Type.Q5_1: BlockType(_q5_1, 9),
    Type.Q8_0: BlockType(_q8_0, 8.5),
    Type.Q4_K: BlockType(_q4_k, 4.625),
    Type.Q5_K: BlockType(_q5_k, 8.625),
    Type.Q6_K: BlockType(_q6_k, 8.5625),
    Type.MXFP4: BlockType(_mxfp4, 8.5),
}
