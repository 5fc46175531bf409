"""`engine.quantization`: weights in floating point are rounded while they are loaded, with a scale per output."""

from functools import cached_property

import torch

from legato_engine.errors import CorruptModel, UnsupportedFormat
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.cut import Cut, StoredPart
from legato_engine.weights.expected import expert_projections, projections
from legato_engine.weights.quantization.checkpoint import QuantizedCheckpoint
from legato_engine.weights.quantization.formats import (
    CHANNEL,
    EVERY,
    Activations,
    Element,
    Format,
    LayerRule,
    Layout,
    Quantization,
)
from legato_engine.weights.quantization.weight import PACKED_GROUP, QuantizedWeight

_ELEMENTS = {"FP8": Element.FLOAT8, "Int8": Element.INT8}
_LARGEST = {Element.FLOAT8: 448.0, Element.INT8: 127.0}
_LEAST = 2.0**-20  # the smallest scale, of all-zero outputs, too: float16 rounds smaller ones by more than 3 %


def rounded(checkpoint: Checkpoint, name: str) -> QuantizedCheckpoint:
    """`checkpoint` with linear layers in the format `name`: FP8 or Int8. Embeddings, the output head, routers,
    norms and biases are not rounded. Raises UnsupportedFormat if weights are quantized already."""
    if checkpoint.quantized():
        reason = f"its weights are quantized already: {checkpoint.quantization}; only None is possible"
        raise UnsupportedFormat(f"{checkpoint.path}: engine.quantization is {name}, but {reason}")
    given = Format(Layout.DENSE, _ELEMENTS[name], (CHANNEL,), activations=Activations.DYNAMIC)
    weights = {
        f"{module}.weight": RoundedWeight(checkpoint, f"{module}.weight", given)
        for module in (*projections(checkpoint.config), *expert_projections(checkpoint.config))
    }
    quantization = Quantization("engine.quantization", (LayerRule(EVERY, given),))
    return QuantizedCheckpoint(checkpoint, quantization, weights, checkpoint.names() - weights.keys())


class RoundedWeight(QuantizedWeight):
    """A weight in floating point, rounded to nearest when it is read."""

    def __init__(self, checkpoint: Checkpoint, name: str, given: Format) -> None:
        """Reads only the shape. Raises ModelError."""
        self._checkpoint = checkpoint
        self._tensor_name = name
        self._format = given
        self._tile = CHANNEL
        outputs, inputs = checkpoint.shape(name)
        self.shape = outputs, inputs

    @cached_property
    def packed_bits(self) -> float | None:
        """Bits per value of `packed`; None if it is None. Reads nothing: float16 holds all scales of integers."""
        fits = self._format.element is Element.INT8 and not self.shape[1] % PACKED_GROUP
        return 8.5 if fits else None

    @property
    def _together(self) -> tuple[int, None]:
        """The largest input determines the scale of an output."""
        return 1, None

    def _stored(self, part: StoredPart, place: torch.device | None = None) -> torch.Tensor:
        stored = self._checkpoint.tensor(self._tensor_name)[slice(*part.outputs)]
        if place is None or stored.device.type != "cpu":
            return stored
        out = torch.empty(stored.shape, dtype=stored.dtype, device=place)
        self._checkpoint.read_part(self._tensor_name, Cut(outputs=(part.outputs,)), out)
        return out

    def _codes(self, stored: torch.Tensor, first: int, last: int) -> torch.Tensor:
        part, most = stored[first:last], _LARGEST[self._format.element]
        values = (part.float() / self._scales_of(part)).clamp_(-most, most)
        if self._format.element is Element.FLOAT8:
            return values.to(torch.float8_e4m3fn)
        return values.round_().to(torch.int8)

    def _scales(self) -> torch.Tensor:
        if not (scales := self._scales_of(self._checkpoint.tensor(self._tensor_name))).isfinite().all():
            raise CorruptModel(f"{self._name()}: a weight is NaN or infinite; finite ones are needed")
        return scales

    def _scales_of(self, weight: torch.Tensor) -> torch.Tensor:
        """float32 [out, 1]; for integers rounded to float16, as kernels take them."""
        largest = torch.maximum(weight.amax(1, keepdim=True), -weight.amin(1, keepdim=True)).float()
        scales = (largest / _LARGEST[self._format.element]).clamp(min=_LEAST)
        return scales if self._format.element is Element.FLOAT8 else scales.half().float()

    def _zeros(self) -> None:
        """Codes are symmetric."""

    def _name(self, suffix: str | None = None) -> str:
        return f"{self._checkpoint.path}: tensor {self._tensor_name}"
