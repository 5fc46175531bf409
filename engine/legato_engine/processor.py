"""What this machine's processor can do, and a guard against processors that promise more than they hold."""

import ctypes
import mmap
import os
import platform
from dataclasses import dataclass
from functools import cache

# mov r8,rdx; push rbx; mov eax,edi; mov ecx,esi; cpuid; mov [r8],eax; +4 ebx; +8 ecx; +12 edx; pop rbx; ret
_CPUID = bytes.fromhex("4989d0 53 89f8 89f1 0fa2 418900 41895804 41894808 4189500c 5b c3")
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


@dataclass(frozen=True, slots=True)
class Processor:
    """Instruction sets that choose a kernel. Equal machines give equal values: nothing here is measured."""

    avx512: bool
    bf16: bool  # vdpbf16ps
    amx: bool  # tiles of bf16, allowed by the operating system
    tiles_described: bool  # CPUID tells the sizes of tiles; oneDNN reads them there
    vnni: bool = False  # vpdpbusd of 512 bits
    avx2: bool = False  # with FMA and F16C, which all but the first processors with it have

    def __str__(self) -> str:
        names = {"AVX-512": self.avx512, "VNNI": self.vnni, "BF16": self.bf16, "AMX": self.amx}
        more = ", ".join(name for name, there in names.items() if there)
        return more or ("AVX2, no AVX-512" if self.avx2 else "no AVX2")


@cache
def detect() -> Processor:
    """This machine's processor. Asks the kernel for the use of AMX tiles."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return Processor(False, False, False, False)
    _, basic, words, more = _cpuid(7, 0)
    wanted = (1 << 16) | (1 << 17) | (1 << 30) | (1 << 31)  # F, DQ, BW, VL
    avx512 = basic & wanted == wanted
    bf16 = avx512 and bool(_cpuid(7, 1)[0] & (1 << 5))
    claims = bf16 and bool(more & (1 << 22)) and bool(more & (1 << 24))
    amx = claims and ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0
    vnni = avx512 and bool(words & (1 << 11))
    fused = _cpuid(1, 0)[2]
    avx2 = bool(basic & (1 << 5)) and bool(fused & (1 << 12)) and bool(fused & (1 << 29))  # AVX2, FMA, F16C
    return Processor(avx512, bf16, amx, not claims or any(_cpuid(0x1D, 1)), vnni, avx2)


def guard_onednn(found: Processor) -> None:
    """Keeps oneDNN from AMX where a hypervisor hides the sizes of tiles: it would die of an illegal instruction.

    To be called before torch computes anything; oneDNN reads its variables once.
    """
    if not found.tiles_described:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")


def _cpuid(leaf: int, subleaf: int) -> tuple[int, int, int, int]:
    """Registers eax, ebx, ecx, edx of the CPUID instruction, which Python has no call for."""
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as code:
        code.write(_CPUID)
        view = ctypes.c_char.from_buffer(code)
        call = ctypes.CFUNCTYPE(None, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p)(ctypes.addressof(view))
        found = (ctypes.c_uint32 * 4)()
        call(leaf, subleaf, ctypes.addressof(found))
        del call, view
    return found[0], found[1], found[2], found[3]
