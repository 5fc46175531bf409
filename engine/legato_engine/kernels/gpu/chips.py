"""Abilities of GPUs by the name of their chip. No Triton: CPU workers have none, and choose formats by this too."""

from typing import NamedTuple

_FIRST_WITH_FLOAT8 = 89


class Chip(NamedTuple):
    """`shared` is the memory that one block of threads may have, in bytes."""

    shared: int
    processors: int


CHIPS = {
    "sm_80": Chip(shared=163 << 10, processors=108),  # A100
    "sm_89": Chip(shared=99 << 10, processors=58),  # L4; sm_86 and sm_120 have the same shared memory
    "sm_90": Chip(shared=227 << 10, processors=132),  # H100, H200
    "sm_100": Chip(shared=227 << 10, processors=148),  # B200
}


def has_float8(chip: str) -> bool:
    """True if a chip such as `sm_90` has instructions for e4m3: to multiply matrices, and to convert numbers."""
    return chip.startswith("sm_") and int(chip.removeprefix("sm_")) >= _FIRST_WITH_FLOAT8
