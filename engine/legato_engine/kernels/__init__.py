"""Kernels, a folder each: `naive.py` is the readable truth, `cpu.py` the fast path on a processor, README the maths."""

import os
from hashlib import sha256
from pathlib import Path

import numba


def _keep_compiled_beside(folder: Path) -> None:
    """Let numba keep compiled kernels in a folder of their own for this text of all kernels.

    Numba takes a cached kernel for current while the file that defines it is unchanged, although functions of other
    files are compiled into it. Where nothing can be written beside the code, nothing there changes either, and numba's
    own choice of a folder stands.
    """
    if os.access(folder, os.W_OK) and not numba.config.CACHE_DIR:
        digest = sha256(numba.__version__.encode())
        for source in sorted(folder.rglob("*.py")):
            digest.update(source.read_bytes())
        numba.config.CACHE_DIR = str(folder / "__pycache__" / digest.hexdigest()[:16])


_keep_compiled_beside(Path(__file__).parent)
