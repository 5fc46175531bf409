"""Attention changed as one would write it first, each tile's block ids loaded where they are used. Right, and slow."""

import importlib.util
import sys
from pathlib import Path

from legato_engine.kernels import ahead, attention
from legato_engine.kernels.inspection import inspect

NAME = "legato_engine.kernels.attention.triton_tiles"
CHANGES = (
    ("    ids = _block_ids(table, begin * TILE_N, length, BLOCK, TILE_N)\n", ""),
    ("        ids = _block_ids(table, first + TILE_N, length, BLOCK, TILE_N)\n", ""),
    ("        rows = ids", "        ids = _block_ids(table, first, length, BLOCK, TILE_N)\n        rows = ids"),
)


def source() -> str:
    text = Path(attention.__file__).with_name("triton_tiles.py").read_text()
    for before, after in CHANGES:
        assert text.count(before) == 1, f"the kernel has changed: not found once: {before}"
        text = text.replace(before, after)
    return text


def tiles_in_flight(file: str) -> dict[str, list[int | None]]:
    """By chip, one for each kind of products, of decoding rows and of prompts, with the changed source in `file`."""
    spec = importlib.util.spec_from_file_location(NAME, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[NAME] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import gpu_kernels

    found = {}
    for chip in ("sm_89", "sm_90", "sm_100"):
        with ahead.launches(chip) as launches:
            gpu_kernels.attend(chip, gpu_kernels.Shape(128, 4, 16))
        found[chip] = [inspect(each).tiles for each in launches if each.kernel == "attend_items"]
    return found
