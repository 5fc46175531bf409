"""A quantized weight of a file: its tensors are checked, then dequantized to float32 or converted to codes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from legato_engine.errors import CorruptModel
from legato_engine.weights.cut import WHOLE, Cut, Span, StoredPart
from legato_engine.weights.grouped import REORDERED, Grouped, GroupedForm
from legato_engine.weights.packed import Packed, Scales
from legato_engine.weights.quantization import grouping
from legato_engine.weights.quantization.formats import Activations, Element, Format, Tile

Shape = tuple[int, ...]
_ROWS = 128  # outputs dequantized at a time are a multiple of this, so that no packed word and no block is split
_PART = 1 << 22  # values dequantized at a time
PACKED_GROUP = 32  # inputs that share a scale in `Packed`


@dataclass(frozen=True, slots=True)
class ScaleGrid:
    """Scales and zero points, float32 [rows, columns]. `outputs` neighbouring outputs share a row; `columns` has the
    column of each input."""

    scales: torch.Tensor
    zeros: torch.Tensor | None  # None: 0
    outputs: int
    columns: torch.Tensor  # int64 [in]

    def dequantize(self, codes: torch.Tensor, first: int, inputs: Span) -> torch.Tensor:
        """float32 [rows, inputs], from the codes of these inputs and of the outputs from `first` on."""
        values, outputs = codes.float(), (first, first + len(codes))
        if self.zeros is not None:
            values -= self.spread(self.zeros, outputs, inputs)
        return values.mul_(self.spread(self.scales, outputs, inputs))

    def spread(self, values: torch.Tensor, outputs: Span, inputs: Span, step: int = 1) -> torch.Tensor:
        """A grid's `values` for these outputs and each `step`-th one of these inputs: [outputs, inputs / step]."""
        rows = torch.arange(*outputs) // self.outputs
        return values[rows][:, self.columns[slice(*inputs, step)]]


class QuantizedWeight(ABC):
    """The weight `[out, in]` of a layer. Subclasses in `layouts` read its tensors, `RoundedWeight` computes them."""

    shape: tuple[int, int]
    _format: Format
    _tile: Tile

    @property
    def _together(self) -> tuple[int, int | None]:
        """The outputs and the inputs that can only be read together; None: all inputs."""
        return 1, 1

    @abstractmethod
    def _stored(self, part: StoredPart, place: torch.device | None = None) -> torch.Tensor:
        """The tensor that `_codes` takes for these outputs and inputs, mapped, or read to a device as in
        `Checkpoint.grouped`."""

    @abstractmethod
    def _codes(self, stored: torch.Tensor, first: int, last: int) -> torch.Tensor:
        """Codes of these outputs, from the tensor of all codes: float8, int8 or uint8 [last - first, in]."""

    @abstractmethod
    def _scales(self) -> torch.Tensor:
        """float32 [rows, columns] of the grid, not checked."""

    @abstractmethod
    def _zeros(self) -> torch.Tensor | None:
        """float32 [rows, columns] of the grid; None: 0."""

    def _order(self) -> torch.Tensor | None:
        """The column of each input, int64 [in]; None: in the order of inputs."""
        return None

    def read(self, out: torch.Tensor, cut: Cut = WHOLE) -> None:
        """Writes a part of the dequantized weight into `out` [out, in] of any dtype and device. Raises CorruptModel."""
        first = 0
        for values in self._parts(cut):
            out[first : first + len(values)] = values
            first += len(values)

    def packed(self, cut: Cut = WHOLE) -> Packed | None:
        """A part of the weight as codes that CPU kernels take; None if such codes cannot represent its values exactly.
        Raises ValueError if the part is within a group of inputs."""
        if self.packed_bits is None:
            return None
        grid, codes = self._grid(), self._codes_of(cut)
        whole = (0, self.shape[0]), (0, self.shape[1])
        scale = Scales(cut.by_group(grid.spread(grid.scales, *whole, PACKED_GROUP), PACKED_GROUP).half())
        if self.packed_bits < 8:
            return Packed(4, codes, scale, Scales(scale.values * -8))
        if grid.zeros is not None:
            codes = codes.to(torch.int16) - cut.of(grid.spread(grid.zeros.to(torch.int16), *whole))
        return Packed(8, codes.to(torch.int8), scale)

    @cached_property
    def packed_bits(self) -> float | None:
        """Bits per value of `packed`; None if it is None. Reads and checks scales and zero points, but no codes.
        Raises CorruptModel."""
        grid = self._grid()
        if (
            self._format.element is Element.FLOAT8
            or not self._fits_groups(grid)
            or not _exact(grid.scales.half(), grid)
        ):
            return None
        zeros, middle = grid.zeros, 1 << (self._format.element.bits - 1)
        symmetric = zeros is None or bool((zeros == middle).all())
        if self._format.element is Element.INT8:
            return 8.5 if symmetric else None
        if symmetric and bool((grid.scales.half() * -8).isfinite().all()):
            return 5.0
        return 8.5

    def grouped(self, place: torch.device | None = None, cut: Cut = WHOLE) -> Grouped | None:
        """A part of the weight as codes that GPU kernels take; None if groups have different sizes. Raises
        CorruptModel, and ValueError if the part is within a group of inputs, or divides inputs in another order."""
        if self.grouped_form is None:
            return None
        grid = self._grid()
        rows = torch.arange(self.shape[0]) // grid.outputs
        zeros = None if grid.zeros is None else grid.zeros[rows]
        columns = None if self._order() is None or cut.inputs is not None else grid.columns
        try:
            part = grouping.grouped(
                self._format.element, self._codes_of(cut, place), self.grouped_form.group, grid.scales[rows], zeros,
                columns,
            )  # fmt: skip
        except ValueError as error:
            raise CorruptModel(f"{self._name()}: {error}; finite ones are needed") from None
        if cut.inputs is not None and self._order() is not None:
            raise ValueError("inputs in another order cannot be divided")
        return part.with_codes(part.codes, cut)

    def _codes_of(self, cut: Cut, place: torch.device | None = None) -> torch.Tensor:
        """Codes of a part [out, in], of which little more is read than is needed."""
        parts = [
            self._codes(self._stored(part, place), 0, part.outputs[1] - part.outputs[0])[part.rows, part.columns]
            for part in cut.stored(self.shape, *self._together)
        ]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    @cached_property
    def grouped_form(self) -> GroupedForm | None:
        """The form of `grouped`. Reads and checks scales and zero points of integers, but no codes. Raises
        CorruptModel."""
        element, inputs = self._format.element, self.shape[1]
        group, order = self._tile.inputs or inputs, self._order()
        if order is not None and not grouping.has_equal_groups(order, group):
            return None
        group_bits = 32  # of a group's scale and zero point
        if element is not Element.FLOAT8:
            exact = self.packed_bits is not None  # then float16 holds the scales
            group_bits = 16 if exact else 8 * grouping.scale_dtype(element, self._scales()).itemsize
            group_bits += 0 if grouping.symmetric(element, self._zeros()) else 8
        groups = self._tile.grid(*self.shape)[1]
        rounds = self._format.activations is not Activations.NONE
        details = () if order is None else (REORDERED,)
        return GroupedForm(element, group, element.bits + group_bits * groups / inputs, rounds, details)

    def _fits_groups(self, grid: ScaleGrid) -> bool:
        """True if all inputs of each group of `Packed` are in one column."""
        if self.shape[1] % PACKED_GROUP:
            return False
        groups = grid.columns.view(-1, PACKED_GROUP)
        return bool((groups == groups[:, :1]).all())

    def _parts(self, cut: Cut) -> Iterator[torch.Tensor]:
        """Yields neighbouring outputs of a part, float32 [outputs, in]."""
        grid, inputs = self._grid(), cut.inputs or (0, self.shape[1])
        most = max(_ROWS, _PART // self.shape[1] // _ROWS * _ROWS)
        for begin, end in cut.outputs or ((0, self.shape[0]),):
            for first in range(begin, end, most):
                codes = self._codes_of(replace(cut, outputs=((first, min(first + most, end)),)))
                values = grid.dequantize(codes, first, inputs)
                if not values.isfinite().all():
                    raise CorruptModel(f"{self._name()}: a weight is NaN or infinite; finite ones are needed")
                yield values

    def _grid(self) -> ScaleGrid:
        outputs, inputs = self.shape
        scales, order = self._scales(), self._order()
        if order is None:
            order = torch.arange(inputs) // (self._tile.inputs or inputs)
        return ScaleGrid(scales, self._zeros(), self._tile.outputs or outputs, order)

    @abstractmethod
    def _name(self, suffix: str | None = None) -> str:
        """The file and the tensor of the codes, or the one with `suffix`, for errors."""


def _exact(halves: torch.Tensor, grid: ScaleGrid) -> bool:
    """True if float16 represents all scales."""
    return torch.equal(halves.float(), grid.scales)
