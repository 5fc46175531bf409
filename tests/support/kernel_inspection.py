"""The resources that a compiled kernel needs, and its tiles in flight, from the output of Triton and ptxas."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton

from legato_engine.kernels.gpu.ahead import Launch

_PRODUCTS = {"wgmma": "wgmma.mma_async", "tcgen05": "tcgen05.mma", "mma": "mma.sync"}  # in PTX, by their names


_PRODUCT = re.compile(r"\b(tt\.dot|ttng\.warp_group_dot|ttng\.tc_gen5_mma) ")
_WAIT = re.compile(r"ttg\.async_wait .*\{num = (\d+)")
_TMA = "ttng.async_tma_copy_global_to_local"


class Inspection(NamedTuple):
    """`registers` of a thread; `spilled` and `shared` in bytes, of a thread and of a block; `products` is the kind of
    matrix instructions, or "".

    `tiles` is the number of tiles in flight when a loop waits for one, including that one: with 1, nothing is loaded
    while a tile is computed. None without such a loop.
    """

    registers: int
    spilled: int
    shared: int
    products: str
    tiles: int | None


def inspect(launch: Launch) -> Inspection:
    """Needs programs that come with Triton, and no GPU."""
    registers, spilled = _resources(launch.stage("cubin"))
    instructions = launch.stage("ptx").decode()
    products = next((name for name, written in _PRODUCTS.items() if written in instructions), "")
    return Inspection(
        registers, spilled, launch.facts()["shared"], products, tiles_in_flight(launch.stage("ttgir").decode())
    )


def _resources(binary: bytes) -> tuple[int, int]:
    """Registers, and bytes of a thread's stack, where ptxas puts what has no register."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        output = subprocess.run([program, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.search(rf"{name}:(\d+)", output)[1]) for name in ("REG", "STACK", "LOCAL"))  # type: ignore[index]
    return registers, stack + local


def tiles_in_flight(text: str) -> int | None:
    """The fewest of all loops that multiply what they load; `text` is Triton's GPU dialect.

    A loop waits until at most `num` groups of copies are outstanding, with a group for each copy. In addition to the
    tile that it waited for, `num` divided by the groups of one iteration are in flight. Copies by TMA use barriers; for
    them, it is the number of iterations whose copies were started before the loop.
    """
    lines = text.splitlines()
    counts = [_in_flight(lines, first, last) for first, last in _loops(lines)]
    return min((count for count in counts if count is not None), default=None)


def _loops(lines: list[str]) -> list[tuple[int, int]]:
    """First and last line of each loop, to the brace below its beginning."""
    loops = []
    for first, line in enumerate(lines):
        if " scf.for " in line:
            end = re.match(" *", line)[0] + "}"  # type: ignore[index]
            loops.append((first, next(at for at in range(first + 1, len(lines)) if lines[at].startswith(end))))
    return loops


def _in_flight(lines: list[str], first: int, last: int) -> int | None:
    inner = {at for begin, end in _loops(lines) if first < begin <= last for at in range(begin, end + 1)}
    body = [lines[at] for at in range(first + 1, last) if at not in inner]
    if not any(_PRODUCT.search(line) for line in body):
        return None
    if by_tma := _count(body, _TMA):
        before = max((end for _, end in _loops(lines) if end < first), default=0)
        return _count(lines[before:first], _TMA) // by_tma
    if by_copies := _count(body, "ttg.async_commit_group"):
        waits = [int(match[1]) for line in body if (match := _WAIT.search(line))]
        return 1 + min(waits, default=0) // by_copies
    return 1 if _count(body, "tt.load ") else None


def _count(lines: list[str], what: str) -> int:
    return sum(what in line for line in lines)
