"""Checks that Triton can compile its launcher, a C module made when a process launches its first kernel.

Triton includes headers of CUDA and the assembler for GPUs, but takes the C compiler and Python's headers from the
machine. Run as a module, this compiles Triton's own source as a launch would, into a temporary folder. It needs neither
a GPU nor a driver.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def compile_once() -> None:
    """Compiles and loads the module. Raises Triton's own errors."""
    from triton.backends.nvidia import driver
    from triton.runtime.build import compile_module_from_src

    source = Path(driver.__file__).with_name("driver.c").read_text()
    sys.setdlopenflags(os.RTLD_LAZY)  # it calls libcuda, which is missing without a driver
    compile_module_from_src(source, "cuda_utils", include_dirs=driver.include_dirs)


def main() -> int:
    """Returns 1, after a line with the reason, if it cannot be compiled."""
    with TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            compile_once()
        except Exception as error:  # of a compiler, a linker or Triton: with any of them, no kernel can be launched
            print(f"Triton cannot compile what launches kernels: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
