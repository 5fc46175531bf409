"""The layouts of quantized weights in files: names, dtypes and shapes of the tensors, and the order of their codes.

The layouts are the files of transformers and AutoFP8 (fp8), compressed-tensors, GPTQModel and AutoGPTQ, and AutoAWQ.
"""

import torch

from legato_engine.errors import WrongShape
from legato_engine.weights.cut import Span, StoredPart
from legato_engine.weights.huggingface import DTYPES as FLOATS
from legato_engine.weights.quantization.formats import Element, Layout, Tile
from legato_engine.weights.quantization.fp4 import PackedFp4
from legato_engine.weights.quantization.packing import unpack, unpack_awq
from legato_engine.weights.quantization.stored import StoredWeight
from legato_engine.weights.quantization.weight import Shape

_WORD = 32  # bits
_POWERS = "F8_E8M0"  # powers of 2 as scales of blocks


class Dense(StoredWeight):
    """Codes in `weight`. DeepSeek's files call the scales `weight_scale_inv`: they are factors in spite of the name."""

    suffixes = ("weight", "weight_scale", "weight_scale_inv", "weight_zero_point")

    def _shape(self) -> tuple[int, int]:
        return self._matrix("F8_E4M3" if self._format.element is Element.FLOAT8 else "I8")

    def _check_scales(self) -> Tile:
        tiles = self._format.tiles
        shapes = {shape: tile for tile in reversed(tiles) for shape in _shapes(tile, *self.shape)}
        dtypes = (*FLOATS, _POWERS) if self._format.element is Element.FLOAT8 else FLOATS
        tile = shapes[self._check(self._scale, dtypes, tuple(shapes))]
        self._check_groups(tile, self.shape[1])
        if self._format.zero_points:
            self._check("weight_zero_point", ("I8",), _shapes(tile, *self.shape))
        return tile

    @property
    def _scale(self) -> str:
        return "weight_scale_inv" if self._has("weight_scale_inv") else "weight_scale"

    def _codes(self, stored: torch.Tensor, first: int, last: int) -> torch.Tensor:
        return stored[first:last]

    def _scales(self) -> torch.Tensor:
        return self._finite(self._read(self._scale), self._scale, signed=False).view(self._tile.grid(*self.shape))

    def _zeros(self) -> torch.Tensor | None:
        if not self._format.zero_points:
            return None
        return self._read("weight_zero_point").float().view(self._tile.grid(*self.shape))


class PackQuantized(StoredWeight):
    """Words along inputs. Codes and zero points are stored with an offset that makes them non-negative."""

    suffixes = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")

    def _shape(self) -> tuple[int, int]:
        outputs, words = self._matrix("I32")
        shape = outputs, words * self._per_word
        if self._has("weight_shape") and (written := tuple(self._read("weight_shape").tolist())) != shape:
            raise WrongShape(f"{self._name('weight_shape')} is {list(written)}; the codes have shape {list(shape)}")
        return shape

    def _check_scales(self) -> Tile:
        (tile,), inputs = self._format.tiles, self.shape[1]
        self._check_groups(tile, inputs)
        self._check("weight_scale", FLOATS, _shapes(tile, *self.shape))
        if self._format.zero_points:
            rows, columns = tile.grid(*self.shape)
            self._check("weight_zero_point", ("I32",), ((-(-rows // self._per_word), columns),))
        if self._has("weight_g_idx"):
            self._check("weight_g_idx", ("I32",), ((inputs,),))
        return tile

    @property
    def _per_word(self) -> int:
        return _WORD // self._format.element.bits

    @property
    def _together(self) -> tuple[int, int]:
        return 1, self._per_word

    def _axes(self, part: StoredPart) -> tuple[Span, Span]:
        return part.outputs, _words(part.inputs, self._per_word)

    def _codes(self, stored: torch.Tensor, first: int, last: int) -> torch.Tensor:
        return unpack(stored[first:last], self._format.element.bits)

    def _scales(self) -> torch.Tensor:
        scales = self._finite(self._read("weight_scale"), "weight_scale", signed=True)
        return scales.view(self._tile.grid(*self.shape))

    def _zeros(self) -> torch.Tensor:
        rows, columns = self._tile.grid(*self.shape)
        bits = self._format.element.bits
        if not self._format.zero_points:
            return torch.full((rows, columns), float(1 << (bits - 1)))
        return unpack(self._read("weight_zero_point").T, bits).T[:rows].float()

    def _order(self) -> torch.Tensor | None:
        return self._groups("weight_g_idx")


class Gptq(StoredWeight):
    """Words along inputs, [in, out]; `g_idx` has the group of each input, which is in any order with `desc_act`."""

    suffixes = ("qweight", "scales", "qzeros", "g_idx")

    def _shape(self) -> tuple[int, int]:
        words, outputs = self._matrix("I32")
        return outputs, words * self._per_word

    def _check_scales(self) -> Tile:
        (tile,), (outputs, inputs) = self._format.tiles, self.shape
        self._check_groups(tile, inputs)
        groups = tile.grid(*self.shape)[1]
        self._check("scales", FLOATS, ((groups, outputs),))
        self._check("qzeros", ("I32",), ((groups, outputs // self._per_word),))
        if self._has("g_idx") or self._format.act_order:
            self._check("g_idx", ("I32",), ((inputs,),))
        return tile

    @property
    def _per_word(self) -> int:
        return _WORD // self._format.element.bits

    @property
    def _together(self) -> tuple[int, int]:
        return 1, self._per_word

    def _axes(self, part: StoredPart) -> tuple[Span, Span]:
        return _words(part.inputs, self._per_word), part.outputs

    def _codes(self, stored: torch.Tensor, first: int, last: int) -> torch.Tensor:
        return unpack(stored[:, first:last].T, self._format.element.bits)

    def _scales(self) -> torch.Tensor:
        return self._finite(self._read("scales"), "scales", signed=True).T

    def _zeros(self) -> torch.Tensor:
        zeros = unpack(self._read("qzeros"), self._format.element.bits).T
        if self._format.layout is Layout.GPTQ:
            zeros = zeros + 1 & (1 << self._format.element.bits) - 1  # 0 was stored as the largest code
        return zeros.float()

    def _order(self) -> torch.Tensor | None:
        return self._groups("g_idx")


class Awq(StoredWeight):
    """Words along outputs, [in, out]."""

    suffixes = ("qweight", "scales", "qzeros")

    def _shape(self) -> tuple[int, int]:
        inputs, words = self._matrix("I32")
        return words * _WORD // 4, inputs

    def _check_scales(self) -> Tile:
        (tile,), (outputs, inputs) = self._format.tiles, self.shape
        self._check_groups(tile, inputs)
        groups = tile.grid(*self.shape)[1]
        self._check("scales", FLOATS, ((groups, outputs),))
        self._check("qzeros", ("I32",), ((groups, outputs * 4 // _WORD),))
        return tile

    @property
    def _together(self) -> tuple[int, int]:
        return _WORD // 4, 1

    def _axes(self, part: StoredPart) -> tuple[Span, Span]:
        return part.inputs, _words(part.outputs, _WORD // 4)

    def _codes(self, stored: torch.Tensor, first: int, last: int) -> torch.Tensor:
        return unpack_awq(stored[:, first * 4 // _WORD : last * 4 // _WORD]).T

    def _scales(self) -> torch.Tensor:
        return self._finite(self._read("scales"), "scales", signed=True).T

    def _zeros(self) -> torch.Tensor:
        return unpack_awq(self._read("qzeros")).T.float()


CLASSES: dict[Layout, type[StoredWeight]] = {
    Layout.DENSE: Dense,
    Layout.PACKED: PackQuantized,
    Layout.GPTQ: Gptq,
    Layout.GPTQ_V2: Gptq,
    Layout.AWQ: Awq,
    Layout.FP4_PACKED: PackedFp4,
}


def _words(span: Span, per_word: int) -> Span:
    return span[0] // per_word, span[1] // per_word


def _shapes(tile: Tile, outputs: int, inputs: int) -> tuple[Shape, ...]:
    """The shapes in which tools write a grid: without dimensions of 1, too."""
    rows, columns = tile.grid(outputs, inputs)
    shapes: tuple[Shape, ...] = ((rows, columns),)
    if columns == 1:
        shapes += ((rows,),)
    return (*shapes, ()) if (rows, columns) == (1, 1) else shapes
