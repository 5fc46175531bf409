"""Chooses the device and the backend that compute a worker's steps."""

from typing import TYPE_CHECKING

import torch

from legato_engine.backends.cpu import numerics
from legato_engine.backends.cpu.layers import CpuBackend
from legato_engine.backends.cuda.device import Cuda, Device
from legato_engine.backends.cuda.workspace import Room
from legato_engine.backends.interface import Backend, Progress
from legato_engine.backends.torch.layers import TorchBackend
from legato_engine.errors import NoDevice
from legato_engine.kernels.paths import FLOAT8
from legato_engine.runner.formats import Formats
from legato_engine.runner.sizing import MOST_DRAWS
from legato_engine.weights import kv_scales
from legato_engine.weights.checkpoint import Checkpoint

if TYPE_CHECKING:
    from legato_engine.sampling.device_sampler import DeviceSampler


def gpu(name: str) -> Device | None:
    """The device of that name; None for the processor. Raises NoDevice."""
    if name == "cpu":
        return None
    if not torch.cuda.is_available():
        built = "finds none here" if torch.version.cuda else f"{torch.__version__} was built without it"
        raise NoDevice(f"device {name} was asked for, but torch {built}: use cpu, or a torch and a machine with CUDA")
    return Cuda(torch.device(name))


def gpu_uuids(name: str, ranks: int) -> tuple[str, ...]:
    """UUIDs of the GPUs of ranks whose first has a device that `gpu` returned; none for the processor."""
    if name == "cpu":
        return ()
    devices = [torch.device(name), *[torch.device("cuda", index) for index in range(1, ranks)]]
    return tuple(str(torch.cuda.get_device_properties(device).uuid) for device in devices)


def scales_of_kv(checkpoint: Checkpoint, chosen: Formats) -> torch.Tensor | None:
    """As `kv_scales.read`; None if these formats of KV have none."""
    return kv_scales.read(checkpoint) if chosen.kv == FLOAT8 else None


def make(
    checkpoint: Checkpoint, chosen: Formats, gpu: Device | None, room: Room, report: Progress,
    scales: torch.Tensor | None,
) -> Backend:  # fmt: skip
    """The backend that computes in these formats, with the weights loaded. `room` is the largest step; its blocks hold
    the longest sequence. `scales` belong to the checkpoint's KV heads."""
    if chosen.backend == "cuda":
        from legato_engine.backends.cuda.backend import CudaBackend  # imports triton, which takes a second
        from legato_engine.kernels.gpu import prepared

        assert gpu is not None
        if gpu.place.type == "cuda":
            prepared.install()
        return CudaBackend(checkpoint, chosen.dtype, gpu, room, report, scales)
    if chosen.path is None:
        place = gpu.place if gpu else torch.device("cpu")
        return TorchBackend(checkpoint, chosen.dtype, place, room.max_length, report, scales)
    return CpuBackend(checkpoint, numerics.make(chosen.path), room.max_length, report, scales)


def sampler(chosen: Formats, gpu: Device | None, vocab: int, max_batch: int) -> "DeviceSampler | None":
    """The sampler of a GPU; None if the processor or torch's operators sample."""
    if chosen.backend != "cuda":
        return None
    from legato_engine.sampling.device_sampler import DeviceSampler

    assert gpu is not None
    return DeviceSampler(gpu, vocab, min(max_batch, MOST_DRAWS))
