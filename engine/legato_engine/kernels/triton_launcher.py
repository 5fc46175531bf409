"""Whether Triton can compile what launches its kernels: a C module, made when a process launches its first kernel.

Triton brings headers of CUDA and the assembler for GPUs along, but takes C compiler and Python's headers from the
machine. Run as a module, it compiles Triton's own source as a launch would, into a folder that is removed again.
Neither a GPU nor its driver is needed for that.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def compile_once() -> None:
    """Compile and load the module. What is missing is raised as it is by Triton."""
    from triton.backends.nvidia import driver
    from triton.runtime.build import compile_module_from_src

    source = Path(driver.__file__).with_name("driver.c").read_text()
    sys.setdlopenflags(os.RTLD_LAZY)  # what it calls is in libcuda, which a machine without a driver has not
    compile_module_from_src(source, "cuda_utils", include_dirs=driver.include_dirs)


def main() -> int:
    """Exit code 1, after a line that says what is missing, where it cannot be compiled."""
    with TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            compile_once()
        except Exception as error:  # of a compiler, a linker or Triton: whatever it is, no kernel can be launched
            print(f"Triton cannot compile what launches kernels: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
