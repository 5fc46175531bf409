"""A rank's part of the weights of a model, as a checkpoint of its own."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from legato_engine.backends.sharded.cuts import cuts
from legato_engine.backends.sharded.rank import Rank
from legato_engine.errors import UnsupportedFormat
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.cut import WHOLE, Cut
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.grouped import REORDERED, Grouped, GroupedForm
from legato_engine.weights.packed import Packed


class ShardedCheckpoint(Checkpoint):
    """The tensors of `checkpoint` that a rank computes with."""

    def __init__(self, checkpoint: Checkpoint, rank: Rank) -> None:
        self.path = checkpoint.path
        self.config = rank.config(checkpoint.config)
        self.quantization = checkpoint.quantization
        self._checkpoint = checkpoint
        self._rank = rank
        self._cuts = cuts(checkpoint.config, rank)

    def quantized(self) -> frozenset[str]:
        return self._checkpoint.quantized()

    def spans(self) -> Mapping[Path, Sequence[FileSpan]]:
        return self._checkpoint.spans()

    def names(self) -> frozenset[str]:
        return self._checkpoint.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.cut(name).shape(self._checkpoint.shape(name))

    def tensor(self, name: str) -> torch.Tensor:
        if name in self.quantized():
            part = torch.empty(self.shape(name))
            self.read(name, part)
            return part
        whole = self._checkpoint.tensor(name)
        return torch.zeros_like(whole) if self._is_added_elsewhere(name) else self.cut(name).of(whole)

    def read(self, name: str, out: torch.Tensor) -> None:
        if self._is_added_elsewhere(name):
            out.zero_()
        else:
            self._checkpoint.read_part(name, self.cut(name), out)

    def release(self) -> None:
        self._checkpoint.release()

    def packed(self, name: str) -> Packed | None:
        """Raises UnsupportedFormat if the cut is within a group."""
        try:
            return self._checkpoint.packed_part(name, self.cut(name))
        except ValueError as error:
            ranks = f"{self._rank.count} ranks divide it; use fewer"
            raise UnsupportedFormat(f"{self.path}: tensor {name}: {error}; {ranks}") from None

    def packed_bits(self, name: str) -> float | None:
        return self._checkpoint.packed_bits(name)

    def grouped(self, name: str, place: torch.device | None = None) -> Grouped | None:
        """Raises UnsupportedFormat for what `undivided` says."""
        if reason := self.undivided(name):
            raise UnsupportedFormat(f"{self.path}: {reason}")
        return self._checkpoint.grouped_part(name, self.cut(name), place)

    def grouped_form(self, name: str) -> GroupedForm | None:
        return self._checkpoint.grouped_form(name)

    def undivided(self, name: str) -> str:
        """The reason why `grouped` cannot be cut: within a group, or with inputs in another order; empty if it can."""
        form, cut, columns = self._checkpoint.grouped_form(name), self.cut(name), self._checkpoint.shape(name)[-1]
        if form is None or cut.inputs is None:
            return ""
        if REORDERED in form.details:
            return f"tensor {name} has reordered inputs, which ranks cannot divide"
        first, last = cut.inputs
        if form.group >= columns or not (first % form.group or last % form.group):
            return ""
        each = f"{self._rank.count} ranks would have {last - first} of {columns} inputs each"
        return f"tensor {name} has groups of {form.group} inputs; {each}, a multiple of {form.group} is needed"

    @property
    def fingerprint(self) -> str:
        return self._checkpoint.fingerprint

    def cut(self, name: str) -> Cut:
        return self._cuts.get(name.removesuffix(".weight").removesuffix(".bias"), WHOLE)

    def _is_added_elsewhere(self, name: str) -> bool:
        """True for a bias after a sum over ranks: the first rank adds it."""
        return name.endswith(".bias") and self.cut(name).inputs is not None and not self._rank.first
