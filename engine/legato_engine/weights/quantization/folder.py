"""A Hugging Face folder with quantized weights, as a checkpoint: each has the name and shape that it would have
without quantization."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch

from legato_engine.errors import CorruptModel
from legato_engine.weights import fingerprint
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.expected import expected_shapes
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.huggingface import DTYPES, HuggingFaceFolder
from legato_engine.weights.packed import Packed
from legato_engine.weights.quantization.formats import Quantization
from legato_engine.weights.quantization.layouts import CLASSES
from legato_engine.weights.quantization.weight import QuantizedWeight

_CODES = ("qweight", "weight_packed")  # a tensor of these names holds codes in any case
# Scales of activations and of KV, which are not quantized.
_UNUSED = {"input_scale", "input_zero_point", "activation_scale", "output_scale", "k_scale", "v_scale", "kv_scale"}


class QuantizedFolder(Checkpoint):
    """`folder`, some of whose weights are quantized. The file decides which ones: a `weight` in floating point is read
    as it is."""

    def __init__(self, folder: HuggingFaceFolder, quantization: Quantization) -> None:
        """Reads headers only. Raises ModelError."""
        self.path = folder.path
        self.config = folder.config
        self._folder = folder
        self.quantization = str(quantization)
        self._quantization = quantization
        modules = (_module(folder, name) for name in sorted(folder.names()))
        self._weights = {f"{module}.weight": self._weight(module) for module in modules if module is not None}
        parts = {
            f"{name.removesuffix('.weight')}.{suffix}"
            for name, weight in self._weights.items()
            for suffix in weight.suffixes
        }
        self._floats = {name for name in folder.names() - parts if name.rpartition(".")[2] not in _UNUSED}
        self._floats -= self._empty_biases()
        for name in self._floats:
            folder.check(name)

    def _empty_biases(self) -> set[str]:
        """Biases of zeros that the architecture lacks: early versions of AutoGPTQ wrote one for each layer."""
        names = {f"{name.removesuffix('.weight')}.bias" for name in self._weights} & self._floats
        return {name for name in names - expected_shapes(self.config).keys() if not self._folder.tensor(name).any()}

    def quantized(self) -> frozenset[str]:
        return frozenset(self._weights)

    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        return self._folder.spans()

    def names(self) -> frozenset[str]:
        return frozenset(self._floats | self._weights.keys())

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights[name].shape if name in self._weights else self._folder.shape(name)

    def tensor(self, name: str) -> torch.Tensor:
        if name not in self._weights:
            return self._folder.tensor(name)
        dequantized = torch.empty(self._weights[name].shape)
        self._weights[name].read(dequantized)
        return dequantized

    def read(self, name: str, out: torch.Tensor) -> None:
        if name in self._weights:
            self._weights[name].read(out)
        else:
            super().read(name, out)

    def packed(self, name: str) -> Packed | None:
        return self._weights[name].packed() if name in self._weights else super().packed(name)

    def packed_bits(self, name: str) -> float | None:
        return self._weights[name].packed_bits if name in self._weights else super().packed_bits(name)

    @cached_property
    def fingerprint(self) -> str:
        """Covers the quantization, too: it decides what the same tensors mean."""
        return fingerprint.compute(self.spans(), self.config, self._quantization)

    def _weight(self, module: str) -> QuantizedWeight:
        given = self._quantization.format_of(module)
        if given is None:
            raise CorruptModel(f"{self.path}: {module} is quantized, although quantization_config excludes it")
        return CLASSES[given.layout](self._folder, module, given)


def _module(folder: HuggingFaceFolder, name: str) -> str | None:
    """The layer whose codes the tensor has, or None."""
    module, _, suffix = name.rpartition(".")
    return module if suffix in _CODES or (suffix == "weight" and folder.dtype(name) not in DTYPES) else None
