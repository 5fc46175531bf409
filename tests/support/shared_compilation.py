"""A compiler whose kernel `deadly` kills its process and whose kernel `endless` never ends, and what is called in
processes of their own.

    python -m shared_compilation KERNELS FOLDER PARENT
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from legato_engine import compilers


def main(kernels: str, folder: str, parent: str) -> None:
    claims = compilers.claims(folder, parent)
    for kernel in kernels.split():
        if claims.take(kernel, kernel):
            if kernel == "deadly":
                os.kill(os.getpid(), signal.SIGSEGV)
            if kernel == "endless":
                signal.pause()
            Path(folder, f"{kernel}.compiled").touch()


def compile_share(model: str, folder: str, cache: str) -> Any:
    """Exit code and kernels of a process that compiles for a GPU; called by `uninterpreted`."""
    os.environ["TRITON_CACHE_DIR"] = cache
    from checked_kernels import outcome

    code, out, _ = outcome(model, "64", "sm_90", 227 << 10, folder, str(os.getppid()))
    return [code, out.split()]


def listed_steps() -> dict[str, int]:
    """Kernels of a worker's first steps by path, if none is compiled: all calls do nothing, and steps end."""
    from numba.core.caching import IndexDataCacheFile
    from tiny_models import PROCESSORS, RandomCheckpoint, llama

    from legato_engine.kernels.cpu.missing import listing
    from legato_engine.runner.plan import RunnerOptions
    from legato_engine.runner.runner import Runner

    IndexDataCacheFile._load_index = lambda _file: {}
    counts = {}
    for path in ("float32", "codes", "int8-avx2", "int8", "int8-bf16", "tiles"):
        given = {"block_size": 16, "kv_cache_bytes": 16 << 20, "dtype": "auto", "max_length": 256}
        checkpoint = RandomCheckpoint(llama(layers=2), kinds=lambda name: "Q4_1")
        instructions = PROCESSORS["codes" if path == "float32" else path]
        if path == "float32":
            given["dtype"] = path
        with listing() as missing:
            Runner.load(checkpoint, RunnerOptions(instructions=instructions, **given)).warm_up()
        counts[path] = len(missing)
    return counts


if __name__ == "__main__":
    main(*sys.argv[1:])
