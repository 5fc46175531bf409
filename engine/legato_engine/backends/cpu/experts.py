"""Mixtures of experts on CPUs: the tokens of each expert are gathered, and multiplied by the kernels of linear layers.

Weights of experts that no token of a step chose are not read.
"""

from dataclasses import dataclass

import numpy as np
import torch

from legato_engine.backends import projections
from legato_engine.backends.cpu import expert_rows
from legato_engine.backends.cpu.expert_rows import ExpertRows
from legato_engine.backends.cpu.numerics import Numerics
from legato_engine.backends.cpu.step import CpuStep, Operators, Projection
from legato_engine.backends.cpu.workspace import Array, CpuBuffer, CpuWorkspace
from legato_engine.kernels.cpu.silu_mul import silu_mul
from legato_engine.kernels.paths import Path
from legato_engine.kernels.routing import Gating
from legato_engine.kernels.torch import experts as kernels
from legato_engine.layers.experts import ExpertsShape
from legato_engine.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class ExpertBuffers:
    """Memory for the tokens of one expert, shared by all experts of the same sizes."""

    x: CpuBuffer  # in the format of linear layers' inputs
    gate_up: CpuBuffer
    inner: CpuBuffer
    out: CpuBuffer


@dataclass(frozen=True, slots=True)
class CpuExpert:
    gate_up: Projection
    down: Projection

    def __call__(self, x: Array, rows: int, gating: Gating, buffers: ExpertBuffers) -> Array:
        """x [room, hidden] → float32 [room, hidden], valid until the next expert computes."""
        gate_up, inner, out = (each.take(rows) for each in (buffers.gate_up, buffers.inner, buffers.out))
        self.gate_up(x, rows, gate_up)
        if gating is Gating.SILU:
            silu_mul(gate_up, rows, inner)
        else:
            _store(kernels.gated(torch.from_numpy(gate_up[:rows]), gating), inner)
        self.down(inner, rows, out)
        return out

    @property
    def nbytes(self) -> int:
        return self.gate_up.nbytes + self.down.nbytes


@dataclass(frozen=True, slots=True)
class CpuExperts:
    shape: ExpertsShape
    router: projections.Router
    experts: tuple[CpuExpert, ...]
    shared: CpuExpert | None
    by_row: ExpertRows | None  # for steps of few rows
    buffers: ExpertBuffers
    shared_buffers: ExpertBuffers
    out: CpuBuffer

    def __call__(self, step: Operators, x: Array) -> Array:
        out = self.out.take(step.rows)
        step.call(lambda step: self._compute(step, x, out))
        return out

    def _compute(self, step: CpuStep, x: Array, out: Array) -> None:
        rows = step.rows
        wide, sums = _floats(x[:rows]), out[:rows]
        chosen, weights = kernels.route(self.router.logits(wide), self.router.correction, self.shape.routing)
        sums[:] = 0
        if self.by_row is not None and chosen.numel() <= expert_rows.MOST:
            self._add_by_row(self.by_row, step, x[:rows], chosen, weights, sums)
        else:
            self._add_by_expert(x, chosen, weights, sums)
        if self.shared is not None:
            results = self.shared(x, rows, self.shape.gating, self.shared_buffers)[:rows]
            sums += results * np.asarray(self.router.shared_weights(wide), np.float32)

    def _add_by_row(
        self, by_row: ExpertRows, step: CpuStep, x: Array, chosen: torch.Tensor, weights: torch.Tensor, sums: Array
    ) -> None:
        """Adds the experts of each token in ascending order, as `_add_by_expert` does."""
        numbers, order = chosen.sort(1)
        results, ordered = by_row(step, x, numbers.numpy()), weights.gather(1, order).numpy()
        for place in range(chosen.shape[1]):
            sums += results[:, place] * ordered[:, place, None]

    def _add_by_expert(self, x: Array, chosen: torch.Tensor, weights: torch.Tensor, sums: Array) -> None:
        for number, tokens, places in kernels.by_expert(chosen):
            gathered = self.buffers.x.take(len(tokens))
            gathered[: len(tokens)] = x[tokens.numpy()]
            results = self.experts[number](gathered, len(tokens), self.shape.gating, self.buffers)
            sums[tokens.numpy()] += results[: len(tokens)] * weights[tokens, places, None].numpy()

    @property
    def nbytes(self) -> int:
        shared = 0 if self.shared is None else self.shared.nbytes
        return self.router.nbytes + sum(expert.nbytes for expert in self.experts) + shared


def load(checkpoint: Checkpoint, shape: ExpertsShape, numerics: Numerics, workspace: CpuWorkspace) -> CpuExperts:
    def expert(gate_up: tuple[str, str], down: str, biases: bool) -> CpuExpert:
        return CpuExpert(numerics.linear(checkpoint, gate_up, biases), numerics.linear(checkpoint, [down], biases))

    def buffers(inner: int) -> ExpertBuffers:
        kind = numerics.inputs
        return ExpertBuffers(
            workspace.buffer("expert x", shape.hidden, kind),
            workspace.buffer("expert gate_up", 2 * inner),
            workspace.buffer("expert inner", inner, kind),
            workspace.buffer("expert out", shape.hidden),
        )

    experts = [expert(shape.gate_up(i), shape.down(i), shape.biases) for i in range(shape.routing.count)]
    one = shape.shared
    return CpuExperts(
        shape,
        projections.router(checkpoint, shape),
        tuple(experts),
        None if one is None else expert((one.gate, one.up), one.down, biases=False),
        _by_row(experts, shape, numerics.path, workspace),
        buffers(shape.inner),
        buffers(shape.inner if one is None else one.inner),
        workspace.buffer("experts", shape.hidden),
    )


def _by_row(experts: list[CpuExpert], shape: ExpertsShape, path: Path, workspace: CpuWorkspace) -> ExpertRows | None:
    pairs = [(expert.gate_up, expert.down) for expert in experts]
    if path.family is None or shape.gating is not Gating.SILU or not expert_rows.can_record(pairs):
        return None
    x, out = (workspace.buffer(f"expert rows {each}", shape.hidden).take(expert_rows.MOST) for each in ("in", "out"))
    return ExpertRows(path, pairs, shape.inner, x, out)


def _floats(x: Array) -> torch.Tensor:
    """Inputs of a linear layer in float32."""
    if x.dtype == np.float32:
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).float()


def _store(values: torch.Tensor, out: Array) -> None:
    """Writes float32 rows to the first ones of `out`, in the format of linear layers' inputs."""
    rounded = values if out.dtype == np.float32 else values.bfloat16().view(torch.int16)
    out[: len(values)] = rounded.numpy().view(out.dtype)
