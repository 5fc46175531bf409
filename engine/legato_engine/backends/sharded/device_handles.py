"""Exports memory of a GPU to the other ranks' processes, by CUDA's IPC handles as torch makes them."""

import pickle

import torch


def export(tensor: torch.Tensor) -> bytes:
    """`tensor` must exist as long as another process uses it."""
    from torch.multiprocessing.reductions import reduce_tensor

    return pickle.dumps(reduce_tensor(tensor))  # type: ignore[no-untyped-call]


def opened(handle: bytes) -> torch.Tensor:
    """The tensor of another process, which sees the same GPUs under the same numbers. Raises RuntimeError."""
    rebuild, arguments = pickle.loads(handle)
    tensor: torch.Tensor = rebuild(*arguments)
    return tensor
