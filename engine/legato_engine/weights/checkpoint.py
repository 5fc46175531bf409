"""The interface to a model's weights on disk, independent of their format."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import torch

from legato_engine.models.config import ModelConfig
from legato_engine.weights import fingerprint
from legato_engine.weights.cut import Cut
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.grouped import Grouped, GroupedForm
from legato_engine.weights.packed import Packed


class Checkpoint(ABC):
    """Weights by Hugging Face's tensor names (`model.layers.0.self_attn.q_proj.weight`), in its rotary layout."""

    path: Path
    config: ModelConfig
    quantization: str = ""  # the file's formats of quantized weights, in words

    def quantized(self) -> frozenset[str]:
        """Names of the tensors that the file holds in a quantized format."""
        return frozenset()

    @abstractmethod
    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        """The files with the tensors, always in the same order, and the spans of the tensors in each."""

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Names of all tensors; with tied embeddings `lm_head.weight` may be missing."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """Row-major shape, without reading the tensor. Raises MissingTensor."""

    @abstractmethod
    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in its own dtype if that is floating-point, else dequantized to float32.

        May be a view of the mapped file: copy before writing to it. Raises MissingTensor.
        """

    def read(self, name: str, out: torch.Tensor) -> None:
        """Writes the tensor into `out`, which is contiguous and of its shape; converts dtype and device.

        Raises MissingTensor.
        """
        out.copy_(self.tensor(name))

    def release(self) -> None:  # noqa: B027 - most keep nothing
        """Frees memory and threads that `read` keeps for the next tensor; it may be called again."""

    def vector(self, name: str) -> torch.Tensor:
        """A float32 copy of the tensor: a view would keep the whole file mapped."""
        return self.tensor(name).to(torch.float32, copy=True)

    def packed(self, name: str) -> Packed | None:
        """The tensor as codes if it is quantized, else None. Raises MissingTensor."""
        self.shape(name)
        return None

    def packed_bits(self, name: str) -> float | None:
        """Bits per value of `packed` in a backend's memory, including scales; None if it is not quantized.

        Reads at most scales and zero points.
        """
        self.shape(name)
        return None

    def grouped(self, name: str, place: torch.device | None = None) -> Grouped | None:
        """The tensor as codes in any groups if it is quantized so, else None. Raises MissingTensor.

        With `place`, several threads read codes straight to that device, where they are unpacked; scales may be
        elsewhere. Otherwise, they are read from the mapped file.
        """
        self.shape(name)
        return None

    def grouped_form(self, name: str) -> GroupedForm | None:
        """The form of `grouped`. Reads at most scales and zero points."""
        self.shape(name)
        return None

    def read_part(self, name: str, cut: Cut, out: torch.Tensor) -> None:
        """As `read`, of the part `cut`. Implementations may read only that, here and below."""
        out.copy_(cut.of(self.tensor(name)))

    def packed_part(self, name: str, cut: Cut) -> Packed | None:
        """As `packed`, of the part `cut`. Raises ValueError if it is within a group of inputs."""
        whole = self.packed(name)
        return whole and whole.part(cut)

    def grouped_part(self, name: str, cut: Cut, place: torch.device | None = None) -> Grouped | None:
        """As `grouped`, of the part `cut`. Raises ValueError if it is within a group of inputs, or divides inputs in
        another order."""
        whole = self.grouped(name, place)
        return whole and whole.part(cut)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for all workers with the same weights and config. Reads the files once."""
        return fingerprint.compute(self.spans(), self.config)
