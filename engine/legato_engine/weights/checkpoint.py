"""The interface to a model's weights on disk, whatever their format."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch

from legato_engine.models.config import ModelConfig
from legato_engine.weights import fingerprint
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.packed import Packed


class Checkpoint(ABC):
    """Weights by Hugging Face tensor name (`model.layers.0.self_attn.q_proj.weight`), rotary layout as there."""

    config: ModelConfig

    @abstractmethod
    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        """The files that hold the tensors, always in the same order, and where they lie."""

    @abstractmethod
    def names(self) -> frozenset[str]:
        """All tensors there are. With tied embeddings `lm_head.weight` need not be among them."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Row-major shape, without reading the tensor. Raises MissingTensor."""

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in its own dtype if that is a floating-point one, else dequantized to float32.

        May be a view of the mapped file: copy before writing to it. Raises MissingTensor.
        """

    def read(self, name: str, out: torch.Tensor) -> None:
        """Writes the tensor into `out`, contiguous and of its shape, in whose dtype and on whose device it is then.

        Raises MissingTensor.
        """
        out.copy_(self.tensor(name))

    def vector(self, name: str) -> torch.Tensor:
        """The tensor in float32, in memory of its own: a view would keep the whole mapped file."""
        return self.tensor(name).to(torch.float32, copy=True)

    def packed(self, name: str) -> Packed | None:
        """The tensor as codes, where the file is quantized; else None. Raises MissingTensor."""
        self.shape(name)
        return None

    def packed_bits(self, name: str) -> float | None:
        """Bits for each value of what `packed` gives, as backends hold it, scales included. Reads no tensor."""
        self.shape(name)
        return None

    @cached_property
    def fingerprint(self) -> str:
        """Equal for all workers that loaded the same weights and config. Takes a read of the files, once."""
        return fingerprint.of(self.spans(), self.config)
