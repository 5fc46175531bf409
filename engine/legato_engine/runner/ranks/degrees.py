"""Refuses degrees of tensor parallelism that do not divide a model, its codes, or the GPUs of a machine."""

from collections.abc import Callable
from itertools import permutations

import torch

from legato_engine.backends.sharded.checkpoint import ShardedCheckpoint
from legato_engine.backends.sharded.rank import Rank
from legato_engine.errors import NoDevice, UnsupportedFormat, UnsupportedModel
from legato_engine.runner.formats import Formats
from legato_engine.weights.checkpoint import Checkpoint
from legato_protocol.model_files.degrees import DEGREES, degrees_that_fit, unfit_degree

_FIELD = "parallelism.tensor"


def fitting(checkpoint: Checkpoint, chosen: Formats) -> tuple[int, ...]:
    """The degrees that divide a model's heads, its inner sizes, and its codes in these formats."""
    config = checkpoint.config
    fit = degrees_that_fit(config.heads, config.kv_heads, config.inner_sizes)
    return tuple(degree for degree in fit if not _undivided_codes(checkpoint, chosen, degree))


def check_gpus(degree: int, gpus: int, reaches: Callable[[int, int], bool] = torch.cuda.can_device_access_peer) -> None:
    """Raises NoDevice for more ranks than GPUs, and for GPUs of which one cannot read the memory of another."""
    if degree > 1 and gpus < degree:
        fit = _listed(tuple(each for each in DEGREES if each <= gpus))
        raise NoDevice(f"{_FIELD}: {degree} ranks need a GPU each; torch sees {gpus}; degrees that fit: {fit}")
    for one, other in permutations(range(degree), 2):
        if not reaches(one, other):
            raise NoDevice(f"{_FIELD}: GPU {one} cannot access the memory of GPU {other}, over NVLink or PCIe")


def check_model(checkpoint: Checkpoint, degree: int) -> None:
    """Raises UnsupportedModel for a degree that does not divide heads or inner sizes."""
    config = checkpoint.config
    if unfit := unfit_degree(degree, config.heads, config.kv_heads, config.inner_sizes):
        raise UnsupportedModel(f"{checkpoint.path}: {_FIELD}: {unfit}")


def check_codes(checkpoint: Checkpoint, chosen: Formats, degree: int) -> None:
    """Raises UnsupportedFormat for a degree that does not divide the codes of a weight. Reads no codes."""
    if reason := _undivided_codes(checkpoint, chosen, degree):
        fit = _listed(fitting(checkpoint, chosen))
        raise UnsupportedFormat(f"{checkpoint.path}: {_FIELD}: {reason}; degrees that fit: {fit}")


def _undivided_codes(checkpoint: Checkpoint, chosen: Formats, degree: int) -> str:
    """Returns the reason why a GPU's ranks cannot divide the codes of a weight; empty if they can.

    On processors they always can: kernels need multiples of 32 inputs, which is the size of their largest groups.
    """
    if degree == 1 or chosen.backend != "cuda":
        return ""
    part = ShardedCheckpoint(checkpoint, Rank(0, degree))
    multiplied = (name for name in sorted(checkpoint.quantized()) if chosen.product(part, name) is not None)
    return next(filter(None, map(part.undivided, multiplied)), "")


def _listed(degrees: tuple[int, ...]) -> str:
    return ", ".join(map(str, degrees))
