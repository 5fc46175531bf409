"""GPUs of this machine, for `legato doctor`: detects facts and formats them."""

import ctypes
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_PEER_MEMORY = ("/sys/module/nvidia_peermem/version", "/sys/kernel/mm/memory_peers/nv_mem/version")  # where UCX looks
_DMABUF = 124  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED


@dataclass(frozen=True)
class Gpu:
    """One device that torch can use."""

    name: str
    capability: tuple[int, int]
    processors: int  # streaming multiprocessors
    memory: int  # bytes
    shared: int  # bytes of shared memory per block of threads
    dmabuf: bool  # its memory can be shared with other devices as a file descriptor

    @property
    def chip(self) -> str:
        """Target name of compiled kernels."""
        return "sm_{}{}".format(*self.capability)


def elsewhere(chip: str) -> Gpu:
    """Returns a GPU that is not here, for which kernels are compiled: one of CHIPS."""
    from legato_engine.kernels.gpu.chips import CHIPS

    major, minor = divmod(int(chip.removeprefix("sm_")), 10)
    return Gpu(chip, (major, minor), CHIPS[chip].processors, 0, CHIPS[chip].shared, dmabuf=False)


@dataclass(frozen=True)
class Facts:
    """Facts about GPUs and their software. Versions of CUDA have the driver's format: 13000 is 13.0."""

    driver: str = ""  # version of the kernel module; empty if it is missing
    driver_cuda: int = 0  # newest CUDA that libcuda supports; 0 without libcuda
    torch_cuda: str | None = None  # CUDA version that torch was built for
    gpus: tuple[Gpu, ...] = ()
    triton: str | None = None  # version
    cannot_compile: str = ""  # reason why Triton cannot compile its launcher; empty if it can
    cache: str = ""  # folder of compiled kernels
    cache_is_writable: bool = True
    peer_memory: bool = False  # RDMA devices can access GPU memory by address
    ucx_has_cuda: bool = False
    missing_for_rdma: tuple[str, ...] = ()


def find(environ: Mapping[str, str]) -> Facts:
    """Detects the facts. Compiles Triton's launcher, as the first launch of a kernel does."""
    import torch

    from legato_engine.transfer.ucx import transports

    libcuda, triton, cache = _libcuda(), _version("triton"), _cache(environ)
    return Facts(
        driver=module_version(_KERNEL_MODULE.read_text()) if _KERNEL_MODULE.exists() else "",
        driver_cuda=_driver_cuda(libcuda) if libcuda else 0,
        torch_cuda=torch.version.cuda,
        gpus=devices(),
        triton=triton,
        cannot_compile=_cannot_compile(environ) if triton else "",
        cache=str(cache),
        cache_is_writable=is_writable(cache),
        peer_memory=any(Path(path).exists() for path in _PEER_MEMORY),
        ucx_has_cuda=transports.has_module("cuda"),
        missing_for_rdma=tuple(transports.missing_for_rdma()),
    )


def devices() -> tuple[Gpu, ...]:
    """Returns all GPUs that torch can use."""
    import torch

    libcuda = _libcuda()
    return tuple(_gpu(number, libcuda) for number in range(torch.cuda.device_count()))


def visible(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the GPUs that workers can use, as names for CUDA_VISIBLE_DEVICES; none if torch is built for CPUs.

    Asks the driver, because torch is slow to import.
    """
    libcuda, count = _libcuda(), ctypes.c_int(0)
    if libcuda is None or (_version("torch") or "").endswith("+cpu"):
        return ()
    if libcuda.cuInit(0) or libcuda.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    every = [name.strip() for name in chosen.split(",")] if chosen else map(str, range(count.value))
    return tuple(every)[: count.value]


def lines(facts: Facts) -> Iterator[str]:
    """Yields one line for each fact, for `legato doctor`."""
    yield f"{'driver':<14} {_driver(facts)}"
    yield f"{'torch':<14} {_torch(facts)}"
    if not facts.gpus:
        yield f"{'gpu':<14} none that torch can use"
    for number, gpu in enumerate(facts.gpus):
        major, minor = gpu.capability
        size = f"{gpu.processors} multiprocessors, {gpu.memory >> 20} MiB"
        yield f"{'gpu ' + str(number):<14} {gpu.name}; compute capability {major}.{minor}, {size}"
    yield f"{'triton':<14} {_triton(facts)}"
    if facts.triton:
        access = (
            "writable"
            if facts.cache_is_writable
            else "not writable, so no kernel can be launched: set TRITON_CACHE_DIR"
        )
        yield f"{'kernel cache':<14} {facts.cache}: {access}"
    yield f"{'GPUDirect':<14} {_gpu_direct(facts)}"


def module_version(text: str) -> str:
    """Returns the version in the kernel module's description, for any of its variants."""
    match = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return match[1] if match else ""


def is_writable(folder: Path) -> bool:
    """Returns True if this user may write to a folder, or create it."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def reason(stderr: str) -> str:
    """Returns the first error in a compiler's output, or its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return next((line for line in lines if "error:" in line), lines[-1] if lines else "it failed without output")


def _driver(facts: Facts) -> str:
    if not facts.driver_cuda:
        missing = "no libcuda.so.1 here"
        return f"{facts.driver}, but {missing}" if facts.driver else f"none: {missing}"
    return f"{facts.driver or 'of unknown version'}, for CUDA up to {_cuda_version(facts.driver_cuda)}"


def _torch(facts: Facts) -> str:
    if facts.torch_cuda is None:
        return "built without CUDA"
    major = int(facts.torch_cuda.partition(".")[0])
    old = 0 < facts.driver_cuda < 1000 * major
    return f"built for CUDA {facts.torch_cuda}" + (f", which needs a driver for CUDA {major}.0 or newer" if old else "")


def _triton(facts: Facts) -> str:
    if facts.triton is None:
        return "not installed"
    return f"{facts.triton}, " + (
        f"cannot compile here: {facts.cannot_compile}" if facts.cannot_compile else "compiles here"
    )


def _gpu_direct(facts: Facts) -> str:
    """Describes RDMA directly from and to GPU memory."""
    missing = [] if facts.gpus else ["no GPU"]
    dmabuf = bool(facts.gpus) and all(gpu.dmabuf for gpu in facts.gpus)
    if facts.gpus and not facts.peer_memory and not dmabuf:
        missing.append("neither the kernel module nvidia_peermem nor dmabuf of the driver")
    if not facts.ucx_has_cuda:
        missing.append("a UCX built --with-cuda")
    missing += facts.missing_for_rdma
    if missing:
        return f"not usable: {'; '.join(missing)}"
    return f"nothing is missing: {'nvidia_peermem' if facts.peer_memory else 'dmabuf'}, a UCX with CUDA and verbs"


def _cuda_version(cuda: int) -> str:
    return f"{cuda // 1000}.{cuda % 1000 // 10}"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cache(environ: Mapping[str, str]) -> Path:
    """Returns Triton's cache folder."""
    return Path(
        environ.get("TRITON_CACHE_DIR") or Path(environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
    )


def _cannot_compile(environ: Mapping[str, str]) -> str:
    """Returns the reason why Triton cannot compile.

    Runs in a separate process, which keeps its output and libraries.
    """
    command = [sys.executable, "-m", "legato_engine.kernels.gpu.launcher"]
    done = subprocess.run(command, capture_output=True, text=True, env={**environ})
    return reason(done.stderr) if done.returncode else ""


def _libcuda() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _driver_cuda(libcuda: ctypes.CDLL) -> int:
    version = ctypes.c_int(0)
    libcuda.cuDriverGetVersion(ctypes.byref(version))
    return version.value


def _gpu(number: int, libcuda: ctypes.CDLL | None) -> Gpu:
    import torch

    device = torch.cuda.get_device_properties(number)
    return Gpu(
        name=device.name,
        capability=(device.major, device.minor),
        processors=device.multi_processor_count,
        memory=device.total_memory,
        shared=device.shared_memory_per_block_optin,  # type: ignore[attr-defined]  # torch's stub has not all
        dmabuf=libcuda is not None and _has_dmabuf(libcuda, number),
    )


def _has_dmabuf(libcuda: ctypes.CDLL, number: int) -> bool:
    device, supported = ctypes.c_int(0), ctypes.c_int(0)
    if libcuda.cuInit(0) or libcuda.cuDeviceGet(ctypes.byref(device), number):
        return False
    return not libcuda.cuDeviceGetAttribute(ctypes.byref(supported), _DMABUF, device) and bool(supported.value)
