"""Kernels that an image was built with, as entries of Triton's cache.

An entry is a folder named by a hash of all that its kernel depends on: source, types, sizes, options, the target and
Triton itself. So an entry for another chip or version is never used, and one may be copied from machine to machine.
"""

import json
import os
import shutil
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

import triton

PREPARED = "LEGATO_PREPARED"  # names the folder that an image was built with; only read
FOLDER = "triton"  # in it
_KERNELS = Path(__file__).parent
_GROUP = "__grp__*"  # lists the files of an entry by their whole paths


def install() -> int:
    """Copies the image's entries that Triton's cache lacks, and returns their number.

    A cache that cannot be written is left as it is: Triton reports that when it compiles.
    """
    given, count = os.environ.get(PREPARED), 0
    if not given:  # a relative path would name what happens to be in the working directory
        return count
    prepared, cache = Path(given, FOLDER), Path(triton.knobs.cache.dir)
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        for entry in sorted(prepared.iterdir()):
            count += not (cache / entry.name).exists() and _copy(entry, cache)
    return count


class Complete:
    """A mark in Triton's cache: it has all kernels of a worker that these texts describe, for this code and Triton."""

    def __init__(self, *texts: str) -> None:
        digest = sha256("\0".join((triton.__version__, *texts)).encode())
        for file in sorted(_KERNELS.rglob("*.py")):
            digest.update(file.read_bytes())
        self._path = Path(triton.knobs.cache.dir, f"complete-{digest.hexdigest()[:32]}")

    @property
    def marked(self) -> bool:
        return self._path.is_dir()

    def mark(self) -> None:
        """Leaves a cache that cannot be written as it is."""
        with suppress(OSError):
            self._path.mkdir(parents=True, exist_ok=True)


def _copy(entry: Path, cache: Path) -> bool:
    """Copies an entry whole or not at all: processes may start together. Raises OSError."""
    draft = Path(mkdtemp(dir=cache, prefix="legato-"))
    try:
        shutil.copytree(entry, draft, dirs_exist_ok=True)
        for group in draft.glob(_GROUP):
            names = json.loads(group.read_text())["child_paths"]
            group.write_text(json.dumps({"child_paths": {name: str(cache / entry.name / name) for name in names}}))
        draft.chmod(0o755)
        draft.rename(cache / entry.name)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        if not (cache / entry.name).exists():  # else another process was first
            raise
        return False
    return True
