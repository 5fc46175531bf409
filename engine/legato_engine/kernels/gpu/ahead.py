"""Kernels compiled for a chip that is not here, by the functions that launch them.

Within `launches`, Triton compiles launched kernels as on a GPU of that kind, keeps them in its cache, and lists the
launches; nothing runs, and tensors may be anywhere. A worker with that cache compiles nothing.
"""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.cache import get_cache_manager

from legato_engine.kernels.gpu.chips import CHIPS, Chip

_MOST_THREADS = 1024  # of a block


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch that did not run: equal ones are one node of a CUDA graph.

    `pointers` are the addresses of tensors, by argument; `scalars` all other arguments, sizes of tiles too.
    """

    kernel: str
    grid: tuple[int, int, int]
    pointers: Mapping[str, int]
    scalars: Mapping[str, Any]
    warps: int
    stages: int
    compiled: str = field(default="", repr=False)  # its key in Triton's cache

    def stage(self, suffix: str) -> bytes:
        """A stage of its compilation: `ttgir`, `ptx` or `cubin`."""
        files = get_cache_manager(self.compiled).get_group(f"{self.kernel[:150]}.json")
        with open(files[f"{self.kernel[:150]}.{suffix}"], "rb") as file:
            return file.read()

    def facts(self) -> Mapping[str, Any]:
        """Triton's metadata of the compiled kernel: `shared` memory in bytes, `global_scratch_size` and more."""
        return dict(json.loads(self.stage("json")))


@contextlib.contextmanager
def launches(chip: str, has: Chip | None = None) -> Iterator[list[Launch]]:
    """Lists the launches within, in order. A kernel that does not fit the chip raises Triton's OutOfResources.

    `has` are the chip's resources; None: as in CHIPS. Raises ValueError for an unknown chip, RuntimeError if kernels
    are interpreted.
    """
    if (has := has or CHIPS.get(chip)) is None:
        raise ValueError(f"not a chip that kernels are compiled for: {chip} ({', '.join(CHIPS)})")
    if triton.knobs.runtime.interpret:
        raise RuntimeError("kernels are interpreted: TRITON_INTERPRET must not be set")
    listed: list[Launch] = []
    before = triton.runtime.driver._active
    triton.runtime.driver.set_active(_Elsewhere(chip, has.shared, listed))
    try:
        yield listed
    finally:
        triton.runtime.driver._active = before


@contextlib.contextmanager
def compilations(take: Callable[[str, str], bool] | None = None) -> Iterator[list[str]]:
    """Lists the names of the kernels that Triton starts to compile within, because its errors do not name them.

    With `take`, Triton compiles a kernel only if this is true for a key, equal in all processes, and the name."""
    started: list[str] = []

    def note(*, fn: Any, compile: Any, **_rest: Any) -> bool:  # true prevents the compilation, and the launch
        if take is not None and not take(compile["specialization_data"], fn.name):
            return True
        started.append(fn.name)
        return False

    before = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = note
    try:
        yield started
    finally:
        triton.knobs.runtime.jit_cache_hook = before


def _flat(arguments: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Arguments by name, with the fields of named tuples as `argument.field`."""
    for name, value in arguments:
        if (fields := getattr(value, "_fields", None)) is not None:
            yield from _flat((f"{name}.{field}", part) for field, part in zip(fields, value, strict=True))
        else:
            yield name, value


class _Launcher:
    """Triton's launcher of one compiled kernel, which it keeps with the kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._kernel: str = source.name
        self._names: list[str] = source.fn.arg_names
        self._metadata = metadata

    def __call__(
        self, x: int, y: int, z: int, _stream: Any, _function: Any, _packed: Any, _about: Any, _enter: Any, _exit: Any,
        *arguments: Any,
    ) -> None:  # fmt: skip
        given = dict(_flat(zip(self._names, arguments, strict=True)))
        pointers = {name: value.data_ptr() for name, value in given.items() if isinstance(value, torch.Tensor)}
        scalars = {name: value for name, value in given.items() if name not in pointers}
        chosen = self._metadata
        triton.runtime.driver.active.found.append(
            Launch(self._kernel, (x, y, z), pointers, scalars, chosen.num_warps, chosen.num_stages, chosen.hash)
        )


class _Elsewhere(DriverBase):
    """Triton's driver of a GPU that is not here. Its number differs from any GPU here, because Triton keeps compiled
    kernels of a process by number.
    """

    def __init__(self, chip: str, shared: int, found: list[Launch]) -> None:
        super().__init__()
        self._target = GPUTarget("cuda", int(chip.removeprefix("sm_")), 32)
        self.found = found
        self.utils = SimpleNamespace(
            get_device_properties=lambda _device: {"max_shared_mem": shared},
            load_binary=lambda _name, binary, _shared, _device: (binary, binary, 0, 0, _MOST_THREADS),
        )

    launcher_cls = _Launcher

    @classmethod
    def is_active(cls) -> bool:
        return False

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 1000 + int(self._target.arch)

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is launched here")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing can be measured here")
