"""The layout of quantized weights on a GPU.

A unit is a run of neighbouring inputs with one scale; a kernel loads and multiplies one unit at a time. Codes of 8 bits
are stored as in the weight, [outputs, inputs]. Codes of 4 bits are stored by pairs of units, [pairs, outputs, unit]:
the low half of each byte is a code of the first unit, the high half the code at the same place of the second. So one
mask or shift yields the codes of a whole unit, in order.
"""

from dataclasses import dataclass
from enum import IntEnum
from math import gcd

import torch

LEAST_UNIT = 16  # inputs: the smallest product of tensor cores


class CodeKind(IntEnum):
    """The type of the codes."""

    INT4 = 0  # 0 … 15
    INT8 = 1
    FLOAT8 = 2  # e4m3
    FLOAT4 = 3  # e2m1

    @property
    def paired(self) -> bool:
        """True if a byte has two codes."""
        return self in (CodeKind.INT4, CodeKind.FLOAT4)


_MOST_UNIT = {CodeKind.INT4: 64, CodeKind.INT8: 128, CodeKind.FLOAT8: 128, CodeKind.FLOAT4: 64}


def unit_of(kind: CodeKind, inputs: int, group: int) -> int:
    """The inputs of a unit, if `group` inputs share a scale."""
    return gcd(_MOST_UNIT[kind], inputs, group)


@dataclass(frozen=True, slots=True)
class GroupScales:
    """Scales or minima [groups, outputs]: floats, exponents of powers of two as uint8 (e8m0), or int8 times a float
    factor of some neighbouring groups."""

    values: torch.Tensor
    factors: torch.Tensor | None = None  # [groups / shared, outputs]

    @property
    def shared(self) -> int:
        """The groups that share a factor."""
        return 1 if self.factors is None else len(self.values) // len(self.factors)

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + (0 if self.factors is None else self.factors.nbytes)


@dataclass(frozen=True, slots=True)
class CodeMatrix:
    """A weight [outputs, inputs] = scale · (code - zero) + minimum."""

    kind: CodeKind
    codes: torch.Tensor  # 4 bits: uint8 [pairs of units, outputs, unit]; else int8, or uint8 (FLOAT8) [outputs, inputs]
    outputs: int
    inputs: int
    group: int  # inputs that share a scale; the last group may have fewer
    scale: GroupScales
    zero: int = 0  # of all codes, if there are no `zeros`
    zeros: torch.Tensor | None = None  # int8 [groups, outputs]
    minimum: GroupScales | None = None
    order: torch.Tensor | None = None  # int32 [inputs]: the input of each column of codes

    @property
    def unit(self) -> int:
        return unit_of(self.kind, self.inputs, self.group)

    @property
    def bits(self) -> int:
        return 4 if self.kind.paired else 8

    @property
    def strides(self) -> tuple[int, int]:
        """Bytes from a unit, or pair of units, to the next one, and from an output to the next one."""
        if self.kind.paired:
            return self.outputs * self.unit, self.unit
        return self.unit, self.inputs

    @property
    def nbytes(self) -> int:
        parts = (self.codes, self.scale, self.zeros, self.minimum, self.order)
        return sum(part.nbytes for part in parts if part is not None)


def pair_units(codes: torch.Tensor, unit: int) -> torch.Tensor:
    """Codes 0 … 15, uint8 [outputs, inputs] → the bytes of `CodeMatrix.codes`, with zeros after the last unit."""
    outputs, inputs = codes.shape
    missing = -inputs % (2 * unit)
    low, high = torch.nn.functional.pad(codes, (0, missing)).view(outputs, -1, 2, unit).unbind(2)
    return (low | high << 4).transpose(0, 1).contiguous()
