"""Activations of a step in FP8, for linear layers that multiply with them.

The norm or gate that computes activations also quantizes them if all such layers of that width have the same groups;
otherwise the first linear layer that needs them does.
"""

import torch

from legato_engine.backends.cuda.device import Device
from legato_engine.backends.cuda.workspace import Workspace
from legato_engine.kernels.gpu.configurations import choose
from legato_engine.kernels.gpu.float8 import Float8Rows
from legato_engine.kernels.gpu.linear import fp8

_LARGEST_GROUP = 512  # that a kernel quantizes within a row


class Float8Activations:
    """Memory for the FP8 form of one tensor, [rows, width]. Steps of up to `most_rows` need none."""

    def __init__(self, width: int, group: int, most_rows: int, device: Device, workspace: Workspace) -> None:
        self.group = group
        self._most_rows = most_rows
        self._configuration = choose("quantize_rows", {}, device.chip)
        self._codes = workspace.buffer(f"FP8 in groups of {group}", width, torch.float8_e4m3fn)
        self._scales = workspace.buffer(f"FP8 scales of {width} by {group}", -(-width // group), torch.float32)
        self._quantized: torch.Tensor | None = None  # the tensor whose FP8 form is in memory
        self.fusible = group >= width or (group <= _LARGEST_GROUP and group.bit_count() == 1)

    def given(self, x: torch.Tensor) -> Float8Rows | None:
        """Memory that the kernel that computes x must fill; None if x is not multiplied in FP8."""
        if len(x) <= self._most_rows:
            return None
        self._quantized = x
        return self._rows(len(x))

    def take(self, x: torch.Tensor) -> Float8Rows:
        """Returns x in FP8, quantized here unless the kernel that computed it did."""
        rows = self._rows(len(x))
        if self._quantized is not x:
            fp8.quantize_rows(x, rows, self._configuration)
            self._quantized = x
        return rows

    def _rows(self, count: int) -> Float8Rows:
        scales = self._scales.take(count)
        return Float8Rows(self._codes.take(count), scales.view(-1, count), self.group)


class Float8Memory:
    """The FP8 activations of all linear layers, by width and group."""

    def __init__(self, device: Device, workspace: Workspace) -> None:
        self._device = device
        self._workspace = workspace
        self._activations: dict[tuple[int, int], Float8Activations] = {}

    def activations(self, width: int, group: int, most_rows: int) -> Float8Activations:
        """Memory for a linear layer with `width` inputs, shared with equal ones."""
        key = width, min(group, width)
        if key not in self._activations:
            self._activations[key] = Float8Activations(*key, most_rows, self._device, self._workspace)
        return self._activations[key]

    def given(self, x: torch.Tensor) -> Float8Rows | None:
        """Memory that the kernel that computes x [rows, width] must fill; None if it must not quantize x."""
        fitting = [each for (width, _), each in self._activations.items() if width == x.shape[1]]
        return fitting[0].given(x) if len(fitting) == 1 and fitting[0].fusible else None
