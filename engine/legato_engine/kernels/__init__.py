"""Kernels, a folder each: `naive.py` is the readable truth, `torch.py` and `numba*.py` are what backends call, README
tells the maths.
"""

import os
import shutil
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

import numba

from legato_engine.kernels.saving import save_one_at_a_time


def _keep_compiled_beside(folder: Path) -> None:
    """Let numba keep compiled kernels in a folder of their own for this text of all kernels.

    Numba takes a cached kernel for current while the file that defines it is unchanged, although functions of other
    files are compiled into it. Where nothing can be written beside the code, nothing there changes either; numba uses
    no folder that it cannot write, so what an image was built with is copied to where $NUMBA_CACHE_DIR says.
    """
    digest = sha256(numba.__version__.encode())
    for source in sorted(folder.rglob("*.py")):
        digest.update(source.read_bytes())
    compiled = folder / "__pycache__" / digest.hexdigest()[:16]
    given = numba.config.CACHE_DIR
    if os.access(folder, os.W_OK):
        numba.config.CACHE_DIR = given or str(compiled)
    elif given and compiled.is_dir():
        numba.config.CACHE_DIR = str(_copied(compiled, Path(given)))


def _copied(compiled: Path, into: Path) -> Path:
    """A copy in a folder that can be written. Whole or not at all: processes may start together."""
    target = into / compiled.name
    if not target.is_dir():
        into.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(dir=into))
        shutil.copytree(compiled, draft, dirs_exist_ok=True)
        try:
            draft.rename(target)
        except OSError:  # another was first
            shutil.rmtree(draft)
    return target


_keep_compiled_beside(Path(__file__).parent)
save_one_at_a_time()
