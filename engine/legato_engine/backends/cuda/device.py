"""The device of this backend: a CUDA device, or Triton's interpreter, which runs the same layers on the host."""

from collections.abc import Callable
from typing import Protocol
from weakref import WeakSet

import torch

from legato_engine.errors import NoDevice

LEAST_CAPABILITY = (8, 0)  # has bfloat16 and asynchronous copies into shared memory
DTYPES: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float16)  # in which kernels compute on a GPU


class Device(Protocol):
    """`chip` is its name in tables of configurations, `processors` its number of streaming multiprocessors."""

    place: torch.device
    chip: str
    processors: int
    dtypes: tuple[torch.dtype, ...]  # in which kernels compute on it

    def host(self, size: int) -> torch.Tensor:
        """Host memory, int32 [size], that can be copied to the device while both work."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Memory on the device, uint8 [nbytes], in any thread. Once freed, it is only reused after the steps that were
        started before."""

    def write(self, memory: torch.Tensor, contents: torch.Tensor) -> None:
        """Copies from the host to allocated memory, and waits for that, but not for steps."""

    def mark(self) -> Callable[[], None]:
        """Returns a function that waits for the work that was started before `mark`."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Returns a function that repeats the operations of `work` in the same memory. Nothing runs before, and the
        device may compute meanwhile; Triton's kernels were launched before."""


class Cuda:
    """Implements `Device`."""

    def __init__(self, place: torch.device) -> None:
        device = torch.cuda.get_device_properties(place)
        if (device.major, device.minor) < LEAST_CAPABILITY:
            raise NoDevice(
                f"{device.name} has compute capability {device.major}.{device.minor}; kernels need at least 8.0 (A100, "
                "L4, H100 and later): use such a GPU, or cpu"
            )
        self.place = place
        self.chip = f"sm_{device.major}{device.minor}"
        self.processors = device.multi_processor_count
        self.dtypes = DTYPES
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()  # share memory, since one of them runs at a time
        # In the steps' stream, copies from pageable memory would wait for steps.
        self._loading = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
        self._capturing = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]

    def host(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32, pin_memory=True)

    def allocate(self, nbytes: int) -> torch.Tensor:
        with torch.cuda.stream(self._loading):
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self.place)
        memory.record_stream(torch.cuda.default_stream(self.place))
        return memory

    def write(self, memory: torch.Tensor, contents: torch.Tensor) -> None:
        with torch.cuda.stream(self._loading):
            memory.copy_(contents, non_blocking=True)
        self._loading.synchronize()

    def mark(self) -> Callable[[], None]:
        wait: Callable[[], None] = torch.cuda.current_stream(self.place).record_event().synchronize
        return wait

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        graph, other = torch.cuda.CUDAGraph(), next(iter(self._graphs), None)
        pool = None if other is None else other.pool()  # torch refuses the pool of graphs that are all gone
        with torch.cuda.stream(self._capturing):  # as `torch.cuda.graph`, which would wait for the running step
            # Relaxed: other threads copy meanwhile, and cuBLAS loads kernels when they are first launched.
            graph.capture_begin(pool=pool, capture_error_mode="relaxed")
            try:
                work()
            finally:
                graph.capture_end()
        self._graphs.add(graph)
        return graph.replay


class Interpreted:
    """Implements `Device` with kernels that were defined under TRITON_INTERPRET=1, for tests and debugging.

    Without graphs, a replay computes again from the same memory.
    """

    def __init__(self, processors: int = 4, chip: str = "interpreter") -> None:
        self.place = torch.device("cpu")
        self.chip = chip
        self.processors = processors
        self.dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.float32)  # it multiplies bfloat16 wrongly

    def host(self, size: int) -> torch.Tensor:
        return torch.zeros(size, dtype=torch.int32)

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def write(self, memory: torch.Tensor, contents: torch.Tensor) -> None:
        memory.copy_(contents)

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work
