"""The interface to a model's weights on disk, whatever their format."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from legato_engine.models.config import ModelConfig
from legato_engine.weights import fingerprint
from legato_engine.weights.fingerprint import FileSpan

PACKED_GROUP = 32


@dataclass(frozen=True)
class Packed4:
    """A 4-bit weight matrix `[out, in]`: `w = codes * scale + minimum`, both by groups of 32 along `in`."""

    codes: torch.Tensor  # uint8 [out, in], 0 … 15, one per byte
    scale: torch.Tensor  # float32 [out, in/32]
    minimum: torch.Tensor  # float32 [out, in/32]


@dataclass(frozen=True)
class Packed8:
    """An 8-bit weight matrix `[out, in]`: `w = codes * scale`, by groups of 32 along `in`."""

    codes: torch.Tensor  # int8 [out, in]
    scale: torch.Tensor  # float32 [out, in/32], exact in float16


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

    def vector(self, name: str) -> torch.Tensor:
        """The tensor in float32, in memory of its own: a view would keep the whole mapped file."""
        return self.tensor(name).to(torch.float32, copy=True)

    def packed4(self, name: str) -> Packed4 | None:
        """The tensor as 4-bit codes, where the file holds it as Q4_0 or Q4_1; else None. Raises MissingTensor."""
        self.shape(name)
        return None

    def packed8(self, name: str) -> Packed8 | None:
        """The tensor as 8-bit codes, where the file holds it as Q8_0; else None. Raises MissingTensor."""
        self.shape(name)
        return None

    def packed_bits(self, name: str) -> float | None:
        """Bits for each value of what `packed4` or `packed8` gives, scales included. Reads no tensor."""
        self.shape(name)
        return None

    @cached_property
    def fingerprint(self) -> str:
        """Equal for all workers that loaded the same weights and config. Takes a read of the files, once."""
        return fingerprint.of(self.spans(), self.config)
