"""A rank's part of the weights of a model, as a checkpoint of its own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from legato_engine.backends.sharded.cuts import Cut, cuts
from legato_engine.backends.sharded.rank import Rank
from legato_engine.errors import UnsupportedFormat
from legato_engine.weights.checkpoint import Checkpoint
from legato_engine.weights.fingerprint import FileSpan
from legato_engine.weights.grouped import Grouped, GroupedForm
from legato_engine.weights.packed import Packed, Scales

_WHOLE = Cut()


class ShardedCheckpoint(Checkpoint):
    """The tensors of `checkpoint` that a rank computes with. Of quantized tensors, all codes are read, and a part is
    kept."""

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
        cut, tensor = self.cut(name), self._checkpoint.tensor(name)
        if cut.added and name.endswith(".bias") and not self._rank.first:
            return torch.zeros_like(tensor)  # a bias is added once
        return cut.of(tensor)

    def release(self) -> None:
        self._checkpoint.release()

    def packed(self, name: str) -> Packed | None:
        """Raises UnsupportedFormat if the cut is within a group."""
        whole, cut = self._checkpoint.packed(name), self.cut(name)
        if whole is None or cut is _WHOLE:
            return whole
        columns = self._checkpoint.shape(name)[1]
        minimum = None if whole.minimum is None else self._scales(name, whole.minimum, columns)
        return replace(
            whole, codes=cut.of(whole.codes), scale=self._scales(name, whole.scale, columns), minimum=minimum
        )

    def packed_bits(self, name: str) -> float | None:
        return self._checkpoint.packed_bits(name)

    def grouped(self, name: str, place: torch.device | None = None) -> Grouped | None:
        """Raises UnsupportedFormat if the cut is within a group, or divides inputs that have another order."""
        whole, cut = self._checkpoint.grouped(name, place), self.cut(name)
        if whole is None or cut is _WHOLE:
            return whole
        columns = self._checkpoint.shape(name)[1]
        if cut.inputs is not None and whole.order is not None:
            raise UnsupportedFormat(f"{self.path}: tensor {name} has reordered inputs, which ranks cannot divide")
        if cut.inputs is not None:
            self._check(name, whole.group)
        return replace(
            whole,
            codes=cut.of(whole.codes).contiguous(),
            scale=self._scales(name, whole.scale, columns),
            zeros=None if whole.zeros is None else self._by_group(name, whole.zeros, columns),
            minimum=None if whole.minimum is None else self._scales(name, whole.minimum, columns),
        )

    def grouped_form(self, name: str) -> GroupedForm | None:
        return self._checkpoint.grouped_form(name)

    @property
    def fingerprint(self) -> str:
        return self._checkpoint.fingerprint

    def cut(self, name: str) -> Cut:
        return self._cuts.get(name.removesuffix(".weight").removesuffix(".bias"), _WHOLE)

    def _scales(self, name: str, scales: Scales, columns: int) -> Scales:
        values, factors = self._by_group(name, scales.values, columns), scales.factors
        if factors is None:
            return Scales(values)
        each = columns // factors.shape[1]
        # A cut within a factor's inputs repeats it: of two groups of 128 inputs, each has a factor of its own.
        common = math.gcd(each, *(self.cut(name).inputs or ()))
        return Scales(values, self._by_group(name, factors.repeat_interleave(each // common, 1), columns))

    def _by_group(self, name: str, values: torch.Tensor, columns: int) -> torch.Tensor:
        """This rank's part of numbers of groups of inputs, of `columns` in all: [out, groups]."""
        cut, each = self.cut(name), -(-columns // values.shape[1])
        if values.shape[1] == 1:
            return replace(cut, inputs=None).of(values)
        if cut.inputs is not None:
            self._check(name, each)
        return cut.of(values, each)

    def _check(self, name: str, group: int) -> None:
        """Raises UnsupportedFormat if groups of inputs are not divided evenly."""
        first, last = self.cut(name).inputs or (0, 0)
        columns = self._checkpoint.shape(name)[1]
        if group < columns and (first % group or last % group):
            count = self._rank.count
            raise UnsupportedFormat(
                f"{self.path}: tensor {name} has groups of {group} inputs; {count} ranks would have {last - first} of "
                f"{columns} inputs each, a multiple of {group} is needed: use fewer ranks"
            )
