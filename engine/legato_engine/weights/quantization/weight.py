"""A quantized weight of a file: its tensors are checked, then dequantized to float32 or converted to codes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from legato_engine.errors import CorruptModel, MissingTensor, UnsupportedFormat, WrongShape
from legato_engine.weights.grouped import REORDERED, Grouped, GroupedForm
from legato_engine.weights.huggingface import HuggingFaceFolder
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

    def dequantize(self, codes: torch.Tensor, first: int) -> torch.Tensor:
        """float32 [rows, in], from the codes of the outputs from `first` on."""
        values = codes.float()
        if self.zeros is not None:
            values -= self.spread(self.zeros, first, len(codes))
        return values.mul_(self.spread(self.scales, first, len(codes)))

    def spread(self, values: torch.Tensor, first: int, count: int, step: int = 1) -> torch.Tensor:
        """A grid's `values` for `count` outputs from `first` on and each `step`-th input: [count, in / step]."""
        rows = torch.arange(first, first + count) // self.outputs
        return values[rows][:, self.columns[::step]]


class QuantizedWeight(ABC):
    """The weight `[out, in]` of a layer. Subclasses in `layouts` read its tensors, `RoundedWeight` computes them."""

    shape: tuple[int, int]
    _format: Format
    _tile: Tile

    @abstractmethod
    def _stored(self, place: torch.device | None = None) -> torch.Tensor:
        """The tensor that `_codes` takes, read once for all parts, or read to a device as in `Checkpoint.grouped`."""

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

    def read(self, out: torch.Tensor) -> None:
        """Writes the dequantized weight into `out` [out, in] of any dtype and device. Raises CorruptModel."""
        for first, values in self._parts():
            out[first : first + len(values)] = values

    def packed(self) -> Packed | None:
        """The weight as codes that CPU kernels take; None if such codes cannot represent its values exactly."""
        if self.packed_bits is None:
            return None
        grid, codes = self._grid(), self._codes(self._stored(), 0, self.shape[0])
        scale = Scales(grid.spread(grid.scales, 0, self.shape[0], PACKED_GROUP).half())
        if self.packed_bits < 8:
            return Packed(4, codes, scale, Scales(scale.values * -8))
        if grid.zeros is not None:
            codes = codes.to(torch.int16) - grid.spread(grid.zeros.to(torch.int16), 0, self.shape[0])
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

    def grouped(self, place: torch.device | None = None) -> Grouped | None:
        """The weight as codes that GPU kernels take; None if groups have different sizes. Raises CorruptModel."""
        if self.grouped_form is None:
            return None
        grid, outputs = self._grid(), self.shape[0]
        rows = torch.arange(outputs) // grid.outputs
        zeros = None if grid.zeros is None else grid.zeros[rows]
        columns = None if self._order() is None else grid.columns
        codes = self._codes(self._stored(place), 0, outputs)
        try:
            return grouping.grouped(
                self._format.element, codes, self.grouped_form.group, grid.scales[rows], zeros, columns
            )
        except ValueError as error:
            raise CorruptModel(f"{self._name()}: {error}; finite ones are needed") from None

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

    def _parts(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yields the weight in parts: the first output of each, and its values, float32 [outputs, in]."""
        grid, (outputs, inputs) = self._grid(), self.shape
        most, stored = max(_ROWS, _PART // inputs // _ROWS * _ROWS), self._stored()
        for first in range(0, outputs, most):
            values = grid.dequantize(self._codes(stored, first, min(first + most, outputs)), first)
            if not values.isfinite().all():
                raise CorruptModel(f"{self._name()}: a weight is NaN or infinite; finite ones are needed")
            yield first, values

    def _grid(self) -> ScaleGrid:
        outputs, inputs = self.shape
        scales, order = self._scales(), self._order()
        if order is None:
            order = torch.arange(inputs) // (self._tile.inputs or inputs)
        return ScaleGrid(scales, self._zeros(), self._tile.outputs or outputs, order)

    @abstractmethod
    def _name(self, suffix: str | None = None) -> str:
        """The file and the tensor of the codes, or the one with `suffix`, for errors."""


class StoredWeight(QuantizedWeight):
    """A weight whose codes and scales are tensors of a folder."""

    suffixes: ClassVar[tuple[str, ...]]  # of the names of its tensors in the file; the first has the codes

    def __init__(self, folder: HuggingFaceFolder, module: str, given: Format) -> None:
        """Checks dtypes and shapes, and reads no codes. Raises ModelError."""
        self._folder = folder
        self._module = module
        self._format = given
        self.shape = self._shape()
        self._tile = self._check_scales()

    @abstractmethod
    def _shape(self) -> tuple[int, int]:
        """The numbers of outputs and inputs, by the shape of the codes. Checks their dtype. Raises ModelError."""

    @abstractmethod
    def _check_scales(self) -> Tile:
        """The tile that fits the scales; checks dtype and shape of scales and zero points. Raises ModelError."""

    def _finite(self, scales: torch.Tensor, suffix: str, *, signed: bool) -> torch.Tensor:
        """`scales` in float32. Raises CorruptModel if one is NaN, infinite or, unless `signed`, negative, or if all are
        0: only tiny weights may have a scale of 0."""
        scales = scales.float()
        if not scales.isfinite().all() or (not signed and (scales < 0).any()):
            allowed = "finite ones" if signed else "finite ones of at least 0"
            raise CorruptModel(f"{self._name(suffix)}: a scale is {_worst(scales)}; {allowed} are needed")
        if not scales.any():
            raise CorruptModel(f"{self._name(suffix)}: all scales are 0; the file may be incomplete")
        return scales

    def _check_groups(self, tile: Tile, inputs: int) -> None:
        """Raises CorruptModel if `inputs` is not a multiple of a group's size. The last block may be smaller."""
        if tile.outputs == 1 and tile.inputs is not None and inputs % tile.inputs:
            reason = f"groups of {tile.inputs} do not divide {inputs} inputs"
            raise CorruptModel(f"{self._name()}: {reason}; a divisor, or -1 for one group, is needed")

    def _groups(self, suffix: str) -> torch.Tensor | None:
        """The group of each input; None if the file has none, or only -1, as some tools initialize it. Raises
        CorruptModel."""
        if not self._has(suffix) or (groups := self._read(suffix).long()).eq(-1).all():
            return None
        count = self._tile.grid(*self.shape)[1]
        wrong = groups[(groups < 0) | (groups >= count)]
        if len(wrong):
            raise CorruptModel(f"{self._name(suffix)}: a group is {int(wrong[0])}; 0 … {count - 1} are allowed")
        return groups

    def _stored(self, place: torch.device | None = None) -> torch.Tensor:
        if place is None:
            return self._read(self.suffixes[0])
        return self._folder.read_to(f"{self._module}.{self.suffixes[0]}", place)

    def _read(self, suffix: str) -> torch.Tensor:
        return self._folder.tensor(f"{self._module}.{suffix}")

    def _has(self, suffix: str) -> bool:
        return f"{self._module}.{suffix}" in self._folder.names()

    def _check(self, suffix: str, dtypes: tuple[str, ...], shapes: tuple[Shape, ...] = ()) -> Shape:
        """The shape of a tensor with one of `dtypes`, and of `shapes` if there are any. Raises ModelError."""
        if not self._has(suffix):
            raise MissingTensor(f"{self._name(suffix)} is missing; its format needs it: {self._format}")
        name = f"{self._module}.{suffix}"
        if (dtype := self._folder.dtype(name)) not in dtypes:
            raise UnsupportedFormat(f"{self._name(suffix)} has type {dtype}; supported: {', '.join(dtypes)}")
        shape = self._folder.shape(name)
        if shapes and shape not in shapes:
            needed = " or ".join(str(list(each)) for each in shapes)
            raise WrongShape(
                f"{self._name(suffix)} has shape {list(shape)}; its format requires {needed}: {self._format}"
            )
        return shape

    def _matrix(self, dtype: str) -> tuple[int, int]:
        """The shape of the codes, which have two dimensions. Raises ModelError."""
        shape = self._check(self.suffixes[0], (dtype,))
        if len(shape) != 2 or 0 in shape:
            raise WrongShape(f"{self._name()} has shape {list(shape)}; two dimensions above 0 are required")
        return shape[0], shape[1]

    def _name(self, suffix: str | None = None) -> str:
        return f"{self._folder.path}: tensor {self._module}.{suffix or self.suffixes[0]}"


def _exact(halves: torch.Tensor, grid: ScaleGrid) -> bool:
    """True if float16 represents all scales."""
    return torch.equal(halves.float(), grid.scales)


def _worst(scales: torch.Tensor) -> float:
    wrong = scales[~scales.isfinite()]
    return float(wrong[0] if len(wrong) else scales.min())
