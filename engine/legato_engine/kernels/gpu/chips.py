"""Abilities of GPUs by the name of their chip. No Triton: CPU workers have none, and choose formats by this too."""

_FIRST_WITH_FLOAT8 = 89


def has_float8(chip: str) -> bool:
    """True if a chip such as `sm_90` has instructions for e4m3: to multiply matrices, and to convert numbers."""
    return chip.startswith("sm_") and int(chip.removeprefix("sm_")) >= _FIRST_WITH_FLOAT8
