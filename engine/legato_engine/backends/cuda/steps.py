"""Steps of a model: launched kernel by kernel until `capture`, afterwards replayed as CUDA graphs.

The grids of all launches, also of attention, follow from the padded size of the step; work lists on the device say
which programs have work. So a graph has a whole step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from legato_engine.backends.cuda import sizes
from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.low_rank import AdapterMemory
from legato_engine.backends.cuda.replays import CapturedStep, CapturedSteps
from legato_engine.backends.cuda.step import CudaStep, StepMemory
from legato_engine.backends.cuda.workspace import Room, Size, Workspace
from legato_engine.backends.interface import Forward
from legato_engine.backends.low_rank import LinearShape
from legato_engine.kernels.gpu.attention.attend import AttentionSizes, Work
from legato_engine.layers.inputs import StepInputs


@dataclass(slots=True)
class _Memory:
    """Memory of a step; the results of layers are in the workspace."""

    inputs: StepMemory
    work: Work
    adapters: AdapterMemory | None = None  # made by the first step with adapters

    def fill(self, inputs: StepInputs, size: Size) -> None:
        self.inputs.fill(inputs, size)
        if self.adapters is not None and size.adapted:
            self.adapters.fill(inputs.adapted, size.tokens)

    def step(self, size: Size, arena: torch.Tensor) -> CudaStep:
        adapted = self.adapters.rows(size.tokens) if self.adapters is not None and size.adapted else None
        return self.inputs.step(size, arena, self.work, adapted)


class CudaSteps:
    """Computes steps in memory whose addresses stay the same, unless a step needs more."""

    def __init__(
        self, device: Device, room: Room, workspace: Workspace, heads: AttentionSizes, groups: int,
        linears: Sequence[LinearShape],
    ) -> None:  # fmt: skip
        self.room = room
        self.last: CudaStep | None = None
        self._device = device
        self._workspace = workspace
        self._heads = heads
        self._groups = groups  # of layers
        self._linears = linears  # layers that adapters may update
        self._memory: _Memory | None = None  # made when all layers are known
        self._captured = CapturedSteps(device)
        self._replays = False

    def begin(self, inputs: StepInputs, arena: torch.Tensor) -> CudaStep:
        """A step with these inputs, for layers that are launched one by one."""
        memory = self._made(inputs)
        size = sizes.padded(sizes.exact(inputs), self.room)
        memory.fill(inputs, size)
        memory.inputs.expand(size)
        return memory.step(size, arena)

    def compute(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> torch.Tensor:
        """Logits of the tokens that sample, in memory that the next step overwrites."""
        if self._replays:
            self.last = self._replay(forward, inputs, arena)
        else:
            self.last = self.begin(inputs, arena)
            self.last.compute(forward)
        assert self.last.logits is not None
        return self.last.logits[: len(inputs.sampled)]

    def capture(self, forward: Forward, arena: torch.Tensor) -> None:
        """Captures the sizes of `sizes.early`, and has all later steps replayed. All kernels were launched before."""
        memory, self._replays = self._made(), True
        for size in sizes.early(self.room, memory.adapters is not None):
            self._capture(forward, size, arena, memory)

    def capture_missing(self, forward: Forward, arena: torch.Tensor) -> None:
        """Captures the size of the last step, if that was padded to another one."""
        if (size := self._captured.take_missing()) is not None:
            self._capture(forward, size, arena, self._made())

    def _replay(self, forward: Forward, inputs: StepInputs, arena: torch.Tensor) -> CudaStep:
        memory = self._made(inputs)
        size = sizes.padded(sizes.exact(inputs), self.room)
        captured = self._captured.find(size) or self._capture(forward, size, arena, memory)
        memory.fill(inputs, captured.step.size)
        captured.again()
        return captured.step

    def _capture(self, forward: Forward, size: Size, arena: torch.Tensor, memory: _Memory) -> CapturedStep:
        step = memory.step(size, arena)

        def work() -> None:
            memory.inputs.expand(size)
            step.compute(forward)

        captured = CapturedStep(step, self._device.capture(work))
        self._captured.add(captured)
        return captured

    def _made(self, inputs: StepInputs | None = None) -> _Memory:
        """Memory for a step with these inputs. It is enlarged if necessary, which discards the graphs."""
        size = self.room.largest if inputs is None else sizes.exact(inputs)
        if inputs is not None and inputs.drawn is not None:
            size = replace(size, tokens=max(size.tokens, len(inputs.drawn)))
        if self._memory is None or not self.room.largest.covers(size):
            self._device.mark()()
            self._captured.clear()
            self.last = None
            self.room = room = self.room.enlarged(size)
            self._workspace.make_room(room)
            work = Work(room.rows, room.tokens, self._heads, self._device.place, self._device.processors)
            self._memory = _Memory(StepMemory(room, self._device, self._groups), work)
        if inputs is not None and inputs.adapted and self._memory.adapters is None:
            self._memory.adapters = AdapterMemory(self.room, self._device, self._linears)
        return self._memory
