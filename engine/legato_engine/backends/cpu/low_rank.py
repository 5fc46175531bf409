"""Adapters in the layout of the kernels of `kernels.cpu.low_rank`, and the tokens of a step that use them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from legato_engine.backends.cpu.workspace import Array
from legato_engine.backends.low_rank import LinearShape, count, numbered
from legato_engine.kernels.cpu import low_rank as kernels
from legato_engine.kernels.tags import KV_FLOAT32, Tag
from legato_engine.layers.inputs import AdaptedTokens
from legato_engine.layers.low_rank import LowRankAdapter, Pair


@dataclass(frozen=True, slots=True)
class LayerProjections:
    """A linear layer: its first projection in tables of adapters, and the number of them."""

    projection: int
    projections: int


class CpuAdapter(LowRankAdapter):
    """An adapter's table, MATRICES [projections], and the matrices whose addresses are in it."""

    def __init__(self, table: Array, matrices: Sequence[torch.Tensor]) -> None:
        self._kept_alive = table, matrices
        self.address = int(table.ctypes.data)
        self.ranks = int(table["ranks"].max(initial=0))
        self.nbytes = sum(matrix.nbytes for matrix in matrices)


def packed(pairs: Mapping[str, Pair], layers: Sequence[LinearShape], kind: Tag) -> CpuAdapter:
    """The adapter in the layout of the kernels; may be called in any thread."""
    table, matrices = np.zeros(count(layers), kernels.MATRICES), list[torch.Tensor]()
    for projection in numbered(layers):
        entry = table[projection.number]
        entry["first"], entry["outputs"] = projection.first, projection.outputs
        if (pair := pairs.get(projection.name)) is not None:
            units = pair.b.reshape(-1, kernels.UNIT, pair.b.shape[1])
            down, up = _units(pair.a, kind), _units(units.transpose(1, 2), kind)
            matrices += down, up
            entry["down"], entry["up"], entry["ranks"] = down.data_ptr(), up.data_ptr(), len(pair.a)
    return CpuAdapter(table, matrices)


def _units(matrix: torch.Tensor, kind: Tag) -> torch.Tensor:
    """The numbers in units as `kv_registers` reads them: in bfloat16, two halves of a unit alternate."""
    if kind is KV_FLOAT32:
        return matrix.to(torch.float32).contiguous()
    halves = matrix.to(torch.bfloat16).reshape(*matrix.shape[:-1], -1, 2, kernels.UNIT // 2)
    return halves.transpose(-1, -2).contiguous()


class CpuAdaptedRows:
    """The tokens of a step with adapters, sorted by adapter."""

    def __init__(self, adapted: Sequence[AdaptedTokens], layers: Sequence[LinearShape], kind: Tag) -> None:
        """`kind` is the format of the adapters' matrices."""
        self._kind = kind
        self.order = np.concatenate([np.empty(0, np.int64), *[each.tokens for each in adapted]])
        items, first, ranks = list[tuple[int, int, int]](), 0, 0
        for each in adapted:
            assert isinstance(each.adapter, CpuAdapter)
            end, ranks = first + len(each.tokens), max(ranks, each.adapter.ranks)
            for at in range(first, end, kernels.TOKENS):
                items.append((each.adapter.address, at, min(kernels.TOKENS, end - at)))
            first = end
        self.items = np.array(items, kernels.ITEM)
        projections = max([len(layer.names) for layer in layers]) if adapted else 0
        self.inner = np.empty((len(self.order), projections, ranks), np.float32)
        self._numbers = np.arange(len(self.order))

    def add(self, x: Array, out: Array, layer: LayerProjections) -> None:
        """out += B (A x). x [room, in], float32 or bfloat16 as uint16; out float32 [room, out]."""
        rows = self.order
        if x.dtype == np.uint16:
            x, rows = (x[self.order].astype(np.uint32) << 16).view(np.float32), self._numbers
        kernels.add(
            self._kind, x, rows, out, layer.projection, layer.projections, self.order, self.items, self.inner
        )  # fmt: skip
