"""The kernels of a tiny model, compiled as `legato doctor` has it; called by `uninterpreted`."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import tiny_llama
import triton
from interpreted_models import LLAMA, MODELS, RandomCodes
from tiny_models import RandomCheckpoint

from legato_engine.backends.cuda import backend
from legato_engine.kernels.gpu import ahead
from legato_engine.kernels.gpu.configurations import Configuration
from legato_engine.runner import kernel_check

OUTLINES = Path(kernel_check.__file__).with_name("outlines")
LITTLE = 4 << 10  # bytes of shared memory


def run_checks(folder: str) -> dict[str, Any]:
    """Names of all kernels that are compiled; and exit code, stdout and stderr of checks that end well, of a chip
    with little memory, of blocks that are not supported, and of a width that no kernel can have. All in one process, as
    starting one takes seconds."""
    found: dict[str, Any] = {
        "names": _names(),
        "well": outcome(folder, "64", "sm_90", ahead.CHIPS["sm_90"].shared),
        "little": outcome(folder, "64", "sm_80", LITTLE),
        "outline": outcome(str(OUTLINES / "qwen2.5-7b"), "64", "sm_90", ahead.CHIPS["sm_90"].shared),
        "blocks": outcome(folder, "8", "sm_90", ahead.CHIPS["sm_90"].shared),
    }
    choose = backend.choose
    backend.choose = lambda kernel, shape, chip: (
        Configuration({"WIDTH": 1000}) if kernel == "silu_mul" else choose(kernel, shape, chip)
    )
    found["width"] = outcome(folder, "64", "sm_90", ahead.CHIPS["sm_90"].shared)
    return {**found, "still noted": triton.knobs.runtime.jit_cache_hook is not None}


def _names() -> list[str]:
    with ahead.compilations() as begun, ahead.launches("sm_90"):
        wide = replace(LLAMA, hidden_size=256, intermediate_size=4096)
        codes = [RandomCodes(form, wide) for form in ("FP8, blocks", "FP8, channel", "AWQ")]
        experts = MODELS["qwen 3 moe"]
        codes.append(RandomCodes("FP8, channel", experts))
        for checkpoint in (RandomCheckpoint(tiny_llama.config()), RandomCheckpoint(experts), *codes):
            kernel_check.launch_all(checkpoint, "Auto", "FP8", 64, "sm_90", 132)
    return sorted(set(begun))


def outcome(folder: str, block_size: str, chip: str, shared: int, *shared_work: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = kernel_check.main(folder, "None", "Auto", "Auto", block_size, chip, str(shared), "132", *shared_work)
    return code, out.getvalue(), err.getvalue()
