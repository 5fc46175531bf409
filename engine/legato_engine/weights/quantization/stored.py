"""A quantized weight whose codes, scales and zero points are tensors of a folder."""

from abc import abstractmethod
from typing import ClassVar

import torch

from legato_engine.errors import CorruptModel, MissingTensor, UnsupportedFormat, WrongShape
from legato_engine.weights.cut import Span, StoredPart
from legato_engine.weights.huggingface import HuggingFaceFolder
from legato_engine.weights.quantization.formats import Format, Tile
from legato_engine.weights.quantization.weight import QuantizedWeight, Shape


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
        """The group of each input; None if the file has none, only -1, as some tools initialize it, or groups of
        neighbours. Raises CorruptModel."""
        if not self._has(suffix) or (groups := self._read(suffix).long()).eq(-1).all():
            return None
        count = self._tile.grid(*self.shape)[1]
        wrong = groups[(groups < 0) | (groups >= count)]
        if len(wrong):
            raise CorruptModel(f"{self._name(suffix)}: a group is {int(wrong[0])}; 0 … {count - 1} are allowed")
        neighbours = torch.arange(len(groups)) // (self._tile.inputs or len(groups))
        return None if torch.equal(groups, neighbours) else groups

    def _axes(self, part: StoredPart) -> tuple[Span, Span]:
        """The rows and columns of the tensor of codes with these outputs and inputs."""
        return part.outputs, part.inputs

    def _stored(self, part: StoredPart, place: torch.device | None = None) -> torch.Tensor:
        rows, columns = self._axes(part)
        if place is None:
            return self._read(self.suffixes[0])[slice(*rows), slice(*columns)]
        return self._folder.read_to(f"{self._module}.{self.suffixes[0]}", place, rows, columns)

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


def _worst(scales: torch.Tensor) -> float:
    wrong = scales[~scales.isfinite()]
    return float(wrong[0] if len(wrong) else scales.min())
