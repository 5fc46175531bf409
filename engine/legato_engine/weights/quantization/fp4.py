"""MXFP4 (OCP Microscaling Formats 1.0): E2M1 codes, of which 32 neighbouring inputs share a power of two (E8M0).

A weight is 2^(exponent - 127) times one of 0, ±0.5, ±1, ±1.5, ±2, ±3, ±4, ±6. CPUs take codes of 8 bits, which are
these numbers doubled, with half the scale.
"""

from abc import abstractmethod
from functools import cached_property

import torch

from legato_engine.errors import CorruptModel
from legato_engine.weights.cut import WHOLE, Cut, Span, StoredPart
from legato_engine.weights.e2m1 import doubled
from legato_engine.weights.grouped import Grouped, GroupedForm
from legato_engine.weights.packed import Scales
from legato_engine.weights.quantization.formats import FP4_GROUP as GROUP
from legato_engine.weights.quantization.formats import Element, Tile
from legato_engine.weights.quantization.packing import unpack
from legato_engine.weights.quantization.stored import StoredWeight
from legato_engine.weights.quantization.weight import QuantizedWeight

_NAN = 255  # the exponent that stands for NaN
_EXACT = range(104, 144)  # exponents of scales whose halves float16 represents


class Fp4Weight(QuantizedWeight):
    """A weight in MXFP4. Subclasses read its two tensors; `_stored` are two codes in a byte, the lower half first:
    uint8 [out, in / 2]."""

    @property
    def _together(self) -> tuple[int, int]:
        return 1, 2

    @abstractmethod
    def _exponents(self) -> torch.Tensor:
        """uint8 [out, in / GROUP], not checked."""

    @abstractmethod
    def _name(self, suffix: str | None = None) -> str:
        """As in `QuantizedWeight`; the suffix of scales is "scale"."""

    def _codes(self, stored: torch.Tensor, first: int, last: int) -> torch.Tensor:
        return doubled(unpack(stored[first:last], 4))

    def _zeros(self) -> None:
        """Codes are symmetric."""

    def _scales(self) -> torch.Tensor:
        """Halves of the scales; 0 for groups without another number, so that any exponent of theirs is exact."""
        scales = self._scales_of_groups().float() / 2
        inexact = scales.half().float() != scales
        if inexact.any():
            unused = self._codes_of(WHOLE).view(*scales.shape, GROUP).any(2).logical_not()
            scales[inexact & unused] = 0
        return scales

    def _scales_of_groups(self) -> torch.Tensor:
        """float8_e8m0fnu [out, in / GROUP]. Raises CorruptModel."""
        self._check_exponents()
        return self._exponents().contiguous().view(torch.float8_e8m0fnu)

    def _check_exponents(self) -> None:
        """Raises CorruptModel if one stands for NaN, or if all are 0."""
        _, highest = self._bounds
        if highest == _NAN:
            raise CorruptModel(f"{self._name('scale')}: a scale is NaN; finite ones are needed")
        if highest == 0:
            raise CorruptModel(f"{self._name('scale')}: all scales are 2^-127; the file may be incomplete")

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        """The lowest and the highest exponent."""
        exponents = self._exponents().numpy()  # many small weights: starting torch's threads would take longer
        return int(exponents.min()), int(exponents.max())

    @cached_property
    def packed_bits(self) -> float | None:
        """Bits per value of `packed`; None if float16 cannot hold the scales. Reads scales; codes only if some of them
        do not fit. Raises CorruptModel."""
        self._check_exponents()
        if all(bound in _EXACT for bound in self._bounds):
            return 8.5
        scales = self._scales()
        return 8.5 if torch.equal(scales.half().float(), scales) else None

    def grouped(self, place: torch.device | None = None, cut: Cut = WHOLE) -> Grouped:
        (*parts,) = cut.stored(self.shape, *self._together)
        read = [unpack(self._stored(part, place), 4)[part.rows, part.columns] for part in parts]
        codes = read[0].contiguous() if len(read) == 1 else torch.cat(read)
        whole = Grouped(Element.FLOAT4, codes, GROUP, Scales(self._scales_of_groups()))
        return whole.with_codes(codes, cut)

    @cached_property
    def grouped_form(self) -> GroupedForm:
        self._check_exponents()
        return GroupedForm(Element.FLOAT4, GROUP, 4 + 8 / GROUP)


class PackedFp4(Fp4Weight, StoredWeight):
    """A layer of compressed-tensors."""

    suffixes = ("weight_packed", "weight_scale")

    def _shape(self) -> tuple[int, int]:
        outputs, octets = self._matrix("U8")
        return outputs, 2 * octets

    def _check_scales(self) -> Tile:
        (tile,), (outputs, inputs) = self._format.tiles, self.shape
        self._check_groups(tile, inputs)
        self._check("weight_scale", ("U8", "F8_E8M0"), ((outputs, inputs // GROUP),))
        return tile

    def _axes(self, part: StoredPart) -> tuple[Span, Span]:
        return part.outputs, (part.inputs[0] // 2, part.inputs[1] // 2)

    def _exponents(self) -> torch.Tensor:
        return self._read("weight_scale").view(torch.uint8)

    def _name(self, suffix: str | None = None) -> str:
        return StoredWeight._name(self, "weight_scale" if suffix else None)
