"""Quantized weights as kernels for GPUs take them: codes with scales by groups of inputs, of any size and order."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from legato_engine.weights import e2m1
from legato_engine.weights.cut import Cut
from legato_engine.weights.packed import Packed, Scales, concatenate_scales
from legato_engine.weights.quantization.formats import Element

REORDERED = "with inputs in another order"
ZERO = {Element.FLOAT8: 0, Element.INT8: 0, Element.INT4: 8}  # the zero point of symmetric codes


@dataclass(frozen=True, slots=True)
class GroupedForm:
    """The form of a weight: `group` inputs share a scale, and a value takes `bits`, including scales. With
    `rounds_inputs`, the checkpoint was made for activations of 8 bits. `details` names minima, scales of two factors
    and inputs in another order."""

    element: Element
    group: int
    bits: float
    rounds_inputs: bool = False
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join((f"{self.element.value} in groups of {self.group}", *self.details))

    def fits(self, other: "GroupedForm | None") -> bool:
        """True if one kernel multiplies both: other differences, such as the dtype of scales, can be converted."""
        mine = self.element, self.group, self.details
        return other is not None and mine == (other.element, other.group, other.details)


@dataclass(frozen=True)
class Grouped:
    """A weight matrix `[out, in]`: `w = scale * (code - zero) + minimum`.

    `zeros` are the zero points by group; without them, all are `zero`. The last group may be smaller."""

    element: Element
    codes: torch.Tensor  # [out, in]: float8, int8, or uint8 0 … 15, of FP4 the bits
    group: int
    scale: Scales  # [out, groups]
    zero: int = 0
    zeros: torch.Tensor | None = None  # int8 [out, groups]
    minimum: Scales | None = None
    order: torch.Tensor | None = None  # int32 [in]: the input of each column

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for weights that can be concatenated. A weight with an `order` of its inputs equals only itself."""
        scales = (self.scale, self.minimum or self.scale)
        dtypes = [None if part is None else part.dtype for each in scales for part in (each.values, each.factors)]
        optional = self.zeros is None, self.minimum is None
        return self.element, self.group, self.zero, *optional, *dtypes, None if self.order is None else id(self)

    @property
    def details(self) -> tuple[str, ...]:
        """As in `GroupedForm`."""
        parts = (
            ("with minima", self.minimum), ("with scales of two factors", self.scale.factors),
            (REORDERED, self.order),
        )  # fmt: skip
        return tuple(name for name, part in parts if part is not None)

    @property
    def bits(self) -> float:
        """Bits per value, including scales."""
        scales = (self.scale,) if self.minimum is None else (self.scale, self.minimum)
        parts = [part for each in scales for part in (each.values, each.factors) if part is not None]
        parts += [] if self.zeros is None else [self.zeros]
        return self.element.bits + 8 * sum(part.nbytes for part in parts) / self.codes.numel()

    def part(self, cut: Cut) -> "Grouped":
        """Raises ValueError if the cut is within a group, or divides inputs in another order."""
        return self.with_codes(cut.of(self.codes).contiguous(), cut)

    def with_codes(self, codes: torch.Tensor, cut: Cut) -> "Grouped":
        """The same with the codes of a part, and its scales. Raises ValueError as `part`."""
        if cut.inputs is not None and self.order is not None:
            raise ValueError("inputs in another order cannot be divided")
        return replace(
            self,
            codes=codes,
            scale=self.scale.part(cut, self.group),
            zeros=None if self.zeros is None else cut.by_group(self.zeros, self.group),
            minimum=None if self.minimum is None else self.minimum.part(cut, self.group),
        )

    def floats(self) -> torch.Tensor:
        """The weights, float32 [out, in]."""
        numbers = e2m1.floats(self.codes) if self.element is Element.FLOAT4 else self.codes.float()
        values = numbers - (self.zero if self.zeros is None else self._spread(self.zeros.float()))
        values *= self._spread(self.scale.floats())
        if self.minimum is not None:
            values += self._spread(self.minimum.floats())
        if self.order is None:
            return values
        ordered = torch.empty_like(values)
        ordered[:, self.order.long()] = values
        return ordered

    def _spread(self, by_group: torch.Tensor) -> torch.Tensor:
        return by_group.repeat_interleave(self.group, 1)[:, : self.codes.shape[1]]


def concatenate(parts: Sequence[Grouped]) -> Grouped:
    """Concatenates the outputs of matrices with the same form and number of inputs."""
    zeros = [part.zeros for part in parts if part.zeros is not None]
    minima = [part.minimum for part in parts if part.minimum is not None]
    return replace(
        parts[0],
        codes=torch.cat([part.codes for part in parts]),
        scale=concatenate_scales([part.scale for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
        minimum=concatenate_scales(minima) if minima else None,
    )


def from_packed(packed: Packed, *, symmetric: bool) -> Grouped:
    """The codes of `packed`. With `symmetric`, its minimum is -8 times the scale and becomes the zero point."""
    element = Element.INT4 if packed.bits == 4 else Element.INT8
    zero = ZERO[element] if symmetric else 0
    minimum = None if symmetric else packed.minimum
    return Grouped(element, packed.codes, packed.group, packed.scale, zero, minimum=minimum)
