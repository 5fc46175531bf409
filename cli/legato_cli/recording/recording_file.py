"""A rotated file of bounded size that only has whole lines, even if the disk is full."""

import os
from pathlib import Path

FILES = 4  # at most: FILE, then FILE.1 to FILE.3, the oldest


class RecordingFile:
    """Owns `path`, which must be new, and `path`.1 and so on, with at most `most` bytes in total."""

    def __init__(self, path: Path, most: int) -> None:
        """Creates the file. Raises OSError, including FileExistsError."""
        self._path, self._each = path, most // FILES
        for known in self._names[1:]:
            if known.exists():
                raise FileExistsError(f"{known} exists")
        self._file = path.open("xb", buffering=0)
        self._size = 0

    @property
    def _names(self) -> list[Path]:
        """All names, the newest first."""
        path = self._path
        return [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, FILES))]

    @property
    def written(self) -> list[Path]:
        """Existing files, the oldest first."""
        return [path for path in reversed(self._names) if path.exists()]

    def write(self, line: bytes) -> None:
        """Appends a whole line, or raises OSError and writes nothing."""
        if self._size and self._size + len(line) + 1 > self._each:
            self._rotate()
        left = line + b"\n"
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            os.ftruncate(self._file.fileno(), self._size)
            self._file.seek(self._size)
            raise
        self._size += len(line) + 1

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        names = self._names
        for older, newer in reversed(list(zip(names[1:], names, strict=False))):
            if newer.exists():
                newer.replace(older)
        self._file = self._path.open("xb", buffering=0)
        self._size = 0
