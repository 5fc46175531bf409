"""A small kernel compiled for chips that are not here, and what was reported of it; called by `uninterpreted`."""

import os
from typing import Any

import torch
import triton
import triton.language as tl

from legato_engine.kernels.gpu import ahead
from legato_engine.kernels.gpu import prepared as prepared_kernels


@triton.jit
def _double(x, out, count, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at, mask=at < count) * 2, mask=at < count)


def double(x: torch.Tensor, out: torch.Tensor, size: int = 64) -> None:
    _double[(triton.cdiv(len(x), size),)](x, out, len(x), SIZE=size, num_warps=2, num_stages=1)


def everything(cache: str) -> dict[str, Any]:
    """In one process, as starting one takes seconds: launches by chip, and whether one was in a folder before."""
    return {"launched": {chip: launched(chip) for chip in ahead.CHIPS}, "in cache": found_in_cache(cache, "sm_90")}


def launched(chip: str) -> dict[str, Any]:
    """The same launch in two blocks after one another."""
    x, out = torch.ones(100), torch.zeros(100)
    with ahead.launches(chip) as found:
        double(x, out)
    with ahead.launches(chip) as again:
        double(x, out)
        double(x, out)
    (launch,) = found
    return {
        "kernel": launch.kernel,
        "grid": launch.grid,
        "at": {"x": launch.pointers["x"] - x.data_ptr(), "out": launch.pointers["out"] - out.data_ptr()},
        "scalars": dict(launch.scalars),
        "warps": launch.warps,
        "target": next(line for line in launch.stage("ptx").decode().splitlines() if line.startswith(".target")),
        "again": [one == launch for one in again],
        "out": out.abs().sum().item(),
        "driver is back": triton.runtime.driver._active is None,
    }


def found_in_cache(folder: str, *chips: str) -> list[bool]:
    """By chip, whether the kernel was compiled into this folder before."""
    found: list[bool] = []
    triton.knobs.cache.dir = folder
    triton.knobs.compilation.listener = lambda cache_hit, **_rest: found.append(cache_hit)
    for chip in chips:
        with ahead.launches(chip):
            double(torch.ones(100), torch.zeros(100), 128)
    return found


def found_in_image(prepared: str, cache: str, *chips: str) -> tuple[list[int], list[bool]]:
    """Numbers of entries that two starts of a worker copy, and by chip whether the kernel was among them."""
    os.environ["LEGATO_PREPARED"], triton.knobs.cache.dir = prepared, cache
    return [prepared_kernels.install(), prepared_kernels.install()], found_in_cache(cache, *chips)
