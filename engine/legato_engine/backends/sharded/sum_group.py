"""Sums of large tensors over ranks by a process group of torch: NCCL on GPUs, Gloo on hosts.

The group only moves numbers. Each rank receives its share of all tensors, adds it in float32 in the order of ranks, and
sends the sum to all. So neither which rank came first nor NCCL's choice of an algorithm, a protocol or channels changes
a bit: all ranks have the numbers of the one-shot kernel. Of N ranks, each receives 2 · (N - 1) / N tensors, instead of
N - 1.
"""

import os
from collections.abc import Callable
from datetime import timedelta
from threading import Thread

import torch
import torch.distributed as dist

from legato_engine.backends.sharded.rank import Rank

FEWEST = 3  # ranks: with two, a group moves as much as the one-shot kernel
_BACKENDS = {"cuda": "nccl", "cpu": "gloo"}
_LIMIT = 60.0  # seconds
_ENVIRONMENT = {
    "NCCL_SOCKET_IFNAME": "lo",  # all ranks are in one pod
    "NCCL_NVLS_ENABLE": "0",  # takes memory for sums within NVSwitch
    "NCCL_GRAPH_REGISTER": "0",  # ranks would exchange handles during a capture
    # Nothing but the end of a rank, or the server's watch for silent cores, ends a worker.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}


def nccl_version() -> str:
    if not (dist.is_available() and dist.is_nccl_available()):
        return "none"
    return ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]


class SumGroup:
    """Adds tensors of at least `room` numbers of 2 bytes in one operation, and larger ones in several.

    All ranks call `join`; once all have joined, `try_sum` and `add` alike, the latter in the stream of steps, also
    while it is captured. A rank that gave up must not be in a sum: the others, and their steps, would wait for it."""

    def __init__(self, rank: Rank, place: torch.device, room: int) -> None:
        self._rank = rank
        share = -(-room // (2 * rank.count)) * 2  # even: float32 takes the same bytes
        self._received = torch.empty(rank.count * share * 2, dtype=torch.uint8, device=place)
        self._total = torch.empty(share, dtype=torch.float32, device=place)
        self._place = self._received.device  # with a number
        self._backend = _BACKENDS[place.type]

    def join(self, store: str, seconds: float = _LIMIT) -> str:
        """Joins the other ranks, which have the path of the same empty file. Returns the reason why this failed, or
        ""."""
        return self._within(seconds, "join", lambda: self._join(store, timedelta(seconds=seconds)))

    def try_sum(self, seconds: float = _LIMIT) -> str:
        """Adds once, which also connects ranks. Returns the reason why this failed, or ""."""
        return self._within(seconds, "add", self._try_sum)

    def add(self, x: torch.Tensor) -> None:
        """Replaces x, contiguous and in floats, with its sum over ranks, whose number must divide its size."""
        count = self._rank.count
        gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in torch 2.13
        for piece in torch.split(x.view(-1), len(self._received) // x.element_size()):
            shares = piece.view(count, -1)
            received = self._received[: piece.nbytes].view(x.dtype).view(count, -1)
            dist.all_to_all_single(received, shares)
            total = self._total[: shares.shape[1]]
            torch.add(received[0], 0.0, out=total)  # as the kernel, which makes 0.0 of -0.0
            for share in received[1:]:
                total += share
            own = shares[self._rank.index]
            own.copy_(total)
            gather(piece, own)

    def _within(self, seconds: float, verb: str, operation: Callable[[], str]) -> str:
        """Waits for `operation` in a thread, since NCCL waits for other ranks without a limit."""
        outcome = list[str]()

        def run() -> None:
            if self._place.type == "cuda":
                torch.cuda.set_device(self._place)  # of this thread
            try:
                outcome.append(operation())
            except (OSError, RuntimeError, ValueError) as error:
                lines = filter(None, map(str.strip, str(error).splitlines()))
                outcome.append(f"{type(error).__name__}: {'; '.join(lines)}")

        thread = Thread(target=run, name=verb, daemon=True)
        thread.start()
        thread.join(seconds)
        return outcome[0] if outcome else f"{self._rank.count} ranks did not {verb} within {seconds:g} s"

    def _join(self, store: str, limit: timedelta) -> str:
        if not (dist.is_available() and dist.is_backend_available(self._backend)):
            return f"torch {torch.__version__} was built without {self._backend}"
        device = self._place if self._place.type == "cuda" else None
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        rank, count = self._rank.index, self._rank.count
        file = dist.FileStore(store, count)  # type: ignore[attr-defined]
        dist.init_process_group(self._backend, store=file, rank=rank, world_size=count, timeout=limit, device_id=device)
        return ""

    def _try_sum(self) -> str:
        rank, count = self._rank.index, self._rank.count
        with torch.inference_mode():
            x = torch.full((len(self._received) // 4,), rank + 1.0, device=self._place)
            self.add(x)
            right = bool((x == count * (count + 1) // 2).all())
        return "" if right else "a first sum was wrong"
