"""A checkpoint with quantized weights, under the names and shapes that they have without quantization."""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from pathlib import Path

import torch

from legato_engine.weights import fingerprint
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.cut import Cut
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.grouped import Grouped, GroupedForm
from legato_engine.weights.packed import Packed
from legato_engine.weights.quantization.formats import Quantization
from legato_engine.weights.quantization.weight import QuantizedWeight


class QuantizedCheckpoint(Checkpoint):
    """The quantized `weights` by name; the tensors `others` are read from `source` unchanged."""

    def __init__(
        self,
        source: Checkpoint,
        quantization: Quantization,
        weights: Mapping[str, QuantizedWeight],
        others: AbstractSet[str],
    ) -> None:
        self.path = source.path
        self.config = source.config
        self.quantization = str(quantization)
        self._source = source
        self._quantization = quantization
        self._weights = weights
        self._others = others

    def quantized(self) -> frozenset[str]:
        return frozenset(self._weights)

    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        return self._source.spans()

    def names(self) -> frozenset[str]:
        return frozenset(self._others | self._weights.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights[name].shape if name in self._weights else self._source.shape(name)

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._weights:
            return self._source.tensor(name)
        dequantized = torch.empty(self._weights[name].shape)
        self._weights[name].read(dequantized)
        return dequantized

    def read(self, name: str, out: torch.Tensor) -> None:
        if name in self._weights:
            self._weights[name].read(out)
        else:
            self._source.read(name, out)

    def read_part(self, name: str, cut: Cut, out: torch.Tensor) -> None:
        if name in self._weights:
            self._weights[name].read(out, cut)
        else:
            self._source.read_part(name, cut, out)

    def release(self) -> None:
        self._source.release()

    def packed(self, name: str) -> Packed | None:
        return self._weights[name].packed() if name in self._weights else self._source.packed(name)

    def packed_part(self, name: str, cut: Cut) -> Packed | None:
        return self._weights[name].packed(cut) if name in self._weights else self._source.packed_part(name, cut)

    def packed_bits(self, name: str) -> float | None:
        return self._weights[name].packed_bits if name in self._weights else self._source.packed_bits(name)

    def grouped(self, name: str, place: torch.device | None = None) -> Grouped | None:
        return self._weights[name].grouped(place) if name in self._weights else self._source.grouped(name, place)

    def grouped_part(self, name: str, cut: Cut, place: torch.device | None = None) -> Grouped | None:
        weight = self._weights.get(name)
        return weight.grouped(place, cut) if weight else self._source.grouped_part(name, cut, place)

    def grouped_form(self, name: str) -> GroupedForm | None:
        return self._weights[name].grouped_form if name in self._weights else self._source.grouped_form(name)

    @cached_property
    def fingerprint(self) -> str:
        """Covers the quantization, too: it decides what the same tensors mean."""
        return fingerprint.compute(self.spans(), self.config, self._quantization)
