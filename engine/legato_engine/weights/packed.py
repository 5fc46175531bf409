"""Quantized weights as codes, in one form for all quantized types of files."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from legato_engine.weights.cut import Cut

Join = Callable[[list[torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Scales:
    """Scales or minima of groups of inputs, `[out, groups]`: float16, or int8 times a float16 factor per 256 inputs.
    `Grouped` has scales of any floating-point dtype, also e8m0."""

    values: torch.Tensor  # float16 or int8 [out, groups]
    factors: torch.Tensor | None = None  # float16 [out, in/256]

    def floats(self) -> torch.Tensor:
        """float32 [out, groups], exact: a product of the two has at most 19 bits."""
        if self.factors is None:
            return self.values.float()
        repeated = self.values.shape[1] // self.factors.shape[1]
        return self.values.float() * self.factors.float().repeat_interleave(repeated, 1)

    def part(self, cut: Cut, group: int) -> "Scales":
        """The scales of a part of groups of inputs. Raises ValueError if the cut is within a group."""
        values, factors = cut.by_group(self.values, group), self.factors
        if factors is None:
            return Scales(values)
        each = group * self.values.shape[1] // factors.shape[1]
        # A cut within a factor's inputs repeats it: of two groups of 128 inputs, each has a factor of its own.
        common = math.gcd(each, *(cut.inputs or ()))
        return Scales(values, cut.by_group(factors.repeat_interleave(each // common, 1), common))


def concatenate_scales(parts: Sequence[Scales], join: Join = torch.cat) -> Scales:
    """Concatenates the scales of several matrices along their outputs."""
    factors = [each.factors for each in parts if each.factors is not None]
    return Scales(join([each.values for each in parts]), join(factors) if factors else None)


@dataclass(frozen=True)
class Packed:
    """A weight matrix `[out, in]`: `w = codes * scale + minimum`, both by groups of 16 or 32 along `in`."""

    bits: int  # 4: codes are 0 … 15; 8: -128 … 127
    codes: torch.Tensor  # uint8, or int8, [out, in], one per byte
    scale: Scales
    minimum: Scales | None = None

    @property
    def group(self) -> int:
        return self.codes.shape[1] // self.scale.values.shape[1]

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for weights that can be concatenated."""
        parts = [part for scales in (self.scale, self.minimum) if scales for part in (scales.values, scales.factors)]
        return self.bits, self.group, *(None if part is None else part.dtype for part in parts)

    def floats(self) -> torch.Tensor:
        """The weights, float32 [out, in]."""
        groups = self.codes.float().view(len(self.codes), -1, self.group)
        groups.mul_(self.scale.floats()[:, :, None])
        if self.minimum is not None:
            groups.add_(self.minimum.floats()[:, :, None])
        return groups.view(self.codes.shape)

    def part(self, cut: Cut) -> "Packed":
        """Raises ValueError if the cut is within a group."""
        minimum = None if self.minimum is None else self.minimum.part(cut, self.group)
        return Packed(self.bits, cut.of(self.codes).contiguous(), self.scale.part(cut, self.group), minimum)

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Packed":
        """Applies `change` to all tensors, whose first axis is `out`."""
        return concatenate((self,), lambda parts: change(parts[0]))


def concatenate(parts: Sequence[Packed], join: Join = torch.cat) -> Packed:
    """Concatenates the outputs of matrices with the same form and number of inputs."""
    minima = [part.minimum for part in parts if part.minimum is not None]
    return Packed(
        parts[0].bits,
        join([part.codes for part in parts]),
        concatenate_scales([part.scale for part in parts], join),
        concatenate_scales(minima, join) if minima else None,
    )
