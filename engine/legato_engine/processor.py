"""The instruction sets of this machine's processor, and a guard against processors that promise more than they have."""

import ctypes
import mmap
import os
from dataclasses import dataclass
from functools import cache

from llvmlite import binding

# mov r8,rdx; push rbx; mov eax,edi; mov ecx,esi; cpuid; mov [r8],eax; +4 ebx; +8 ecx; +12 edx; pop rbx; ret
_CPUID = bytes.fromhex("4989d0 53 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
_TILE_LEAF = 0x1D
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18

# Fields of `Processor` that kernels need, and their names for people.
INSTRUCTION_SETS = {"avx512": "AVX-512", "vnni": "VNNI", "bf16": "BF16", "amx": "AMX", "avx2": "AVX2"}


@dataclass(frozen=True, slots=True)
class Processor:
    """Instruction sets that choose a kernel. Equal machines give equal values: nothing here is measured."""

    avx512: bool
    bf16: bool  # vdpbf16ps
    amx: bool  # tiles of bf16, allowed by the operating system
    tiles_described: bool  # CPUID has the sizes of tiles, where oneDNN reads them
    vnni: bool = False  # vpdpbusd of 512 bits
    avx2: bool = False  # with FMA and F16C, which all but the first processors with it have

    def __str__(self) -> str:
        names = [name for field, name in INSTRUCTION_SETS.items() if field != "avx2" and getattr(self, field)]
        return ", ".join(names) or ("AVX2, no AVX-512" if self.avx2 else "no AVX2")


@cache
def detect() -> Processor:
    """This machine's processor. Asks the kernel for the use of AMX tiles."""
    features = binding.get_host_cpu_features()

    def has(*names: str) -> bool:
        return all(features.get(name, False) for name in names)

    avx512 = has("avx512f", "avx512dq", "avx512bw", "avx512vl")
    bf16 = avx512 and has("avx512bf16")
    tiles = bf16 and has("amx-tile", "amx-bf16")
    return Processor(
        avx512=avx512,
        bf16=bf16,
        amx=tiles and _tiles_permitted(),
        tiles_described=not tiles or _tiles_described(),
        vnni=avx512 and has("avx512vnni"),
        avx2=has("avx2", "fma", "f16c"),
    )


def guard_onednn(processor: Processor) -> None:
    """Keeps oneDNN from AMX where a hypervisor hides the sizes of tiles: it would die of an illegal instruction.

    To be called before torch computes anything; oneDNN reads its variables once.
    """
    if not processor.tiles_described:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def _tiles_permitted() -> bool:
    """Asks Linux for the tiles' state: a process that uses tiles without permission is killed."""
    return bool(ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0)


def _tiles_described() -> bool:
    """True if CPUID has the sizes of tiles, which LLVM does not report. Python has no call for CPUID."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as code:
        code.write(_CPUID)
        view = ctypes.c_char.from_buffer(code)
        call = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(ctypes.addressof(view))
        registers = (ctypes.c_uint32 * 4)()
        call(_TILE_LEAF, 1, ctypes.addressof(registers))
        del call, view
    return any(registers)
