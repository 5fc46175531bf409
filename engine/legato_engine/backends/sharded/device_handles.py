"""Exports memory of a GPU to the other ranks' processes, by CUDA's IPC handles as torch makes them."""

import inspect
import pickle

import torch


def export(tensor: torch.Tensor) -> bytes:
    """`tensor` must exist as long as another process uses it."""
    from torch.multiprocessing.reductions import reduce_tensor

    return pickle.dumps(reduce_tensor(tensor))  # type: ignore[no-untyped-call]


def opened(handle: bytes, place: torch.device | None = None) -> torch.Tensor:
    """The tensor of another process, which sees the same GPUs under the same numbers. Raises RuntimeError.

    Kernels of its own GPU can read it or, with `place`, kernels of that GPU: torch maps memory for one GPU."""
    rebuild, arguments = pickle.loads(handle)
    call = inspect.signature(rebuild).bind(*arguments)
    if place is not None:
        call.arguments["storage_device"] = place.index
    tensor: torch.Tensor = rebuild(*call.args)
    return tensor
