"""A folder with a file for each KV block, of one worker at a time. It survives the worker.

    PATH/KV_REVISION/NUMBER/GROUP-HASH-PARENT

The KV revision covers the weights and the layout of blocks. A worker takes the first numbered folder that no other one
has locked, and removes folders of other revisions that nobody uses. A file has a header and the block; every file is
verified before its content is used.
"""

import errno
import fcntl
import os
import re
import shutil
import stat
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from legato_engine.errors import StartFailed
from legato_engine.kvcache.moves import Content

_HEADER: Final = struct.Struct("<8s16sIIQ")  # magic, hash, group, CRC-32 of the block, bytes of the block
_MAGIC: Final = b"LegatoKV"
_NAME: Final = re.compile(r"([0-9]+)-([0-9a-f]{32})-([0-9a-f]{32}|first)")
_REVISION: Final = re.compile(r"[0-9a-f]{32}")
_LOCK: Final = "lock"
_MOST_WORKERS: Final = 1024  # on one machine
_PARTIAL: Final = ".partial"
_ATTEMPTS: Final = 3  # to lock a folder, which a worker of another revision may remove meanwhile


class BadFile(Exception):
    """The file does not contain the expected block. The text says why."""


class BlockFolder:
    """Files of blocks of `block_bytes`. Methods for blocks raise OSError."""

    def __init__(self, folder: Path, lock: int, block_bytes: int) -> None:
        self.folder = folder
        self._lock = lock  # held until the process ends
        self._block_bytes = block_bytes
        self.refused = 0  # files that the start found and removed

    @classmethod
    def open(cls, path: Path, revision: str, block_bytes: int) -> "BlockFolder":
        """Takes a folder of this KV revision. Raises StartFailed."""
        try:
            for number in range(_MOST_WORKERS):
                folder = path / revision / str(number)
                if (lock := _try_lock(folder)) is not None:
                    opened = cls(folder, lock, block_bytes)
                    opened.refused += _remove_others(path, revision)
                    return opened
        except OSError as error:
            raise _unusable(path, error) from None
        raise StartFailed(f"diskKV.path {path}: {_MOST_WORKERS} workers use it already")

    def contents(self) -> list[Content]:
        """Returns blocks with a complete file, least recently used first. Removes all else. Raises StartFailed."""
        whole, rows = _HEADER.size + self._block_bytes, list[tuple[float, Content]]()
        try:
            for entry in [entry for entry in os.scandir(self.folder) if entry.name != _LOCK]:
                content, status = _content_of(entry.name), entry.stat(follow_symlinks=False)
                if content is not None and stat.S_ISREG(status.st_mode) and status.st_size == whole:
                    rows.append((status.st_mtime, content))
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
                self.refused += not entry.name.endswith(_PARTIAL)
        except OSError as error:
            raise _unusable(self.folder, error) from None
        return [content for _, content in sorted(rows, key=lambda pair: pair[0])]

    def write(self, content: Content, block: memoryview) -> None:
        """Writes a block atomically: its file is complete or does not exist."""
        path = self.folder / _name(content)
        partial = path.with_name(path.name + _PARTIAL)
        header = _HEADER.pack(_MAGIC, content.block_hash, content.group, zlib.crc32(block), len(block))
        try:
            with open(partial, "wb", buffering=0) as file:
                _write_all(file.fileno(), header)
                _write_all(file.fileno(), block)
            os.replace(partial, path)
        except OSError:
            with suppress(OSError):
                partial.unlink()
            raise

    def read(self, content: Content, block: memoryview) -> None:
        """Reads the block and verifies it. Raises BadFile, after which the content of `block` is undefined."""
        path = self.folder / _name(content)
        with open(path, "rb", buffering=0) as file:
            header = file.read(_HEADER.size)
            count = _read_all(file.fileno(), block)
            if len(header) < _HEADER.size or count < len(block) or file.read(1):
                raise BadFile("its length is wrong")
        magic, block_hash, group, checksum, length = _HEADER.unpack(header)
        if (magic, block_hash, group, length) != (_MAGIC, content.block_hash, content.group, len(block)):
            raise BadFile("its header is another block's")
        if zlib.crc32(block) != checksum:
            raise BadFile("its checksum is wrong")
        os.utime(path)  # the order of use, for the next start

    def remove(self, content: Content) -> None:
        """Removes the file, if it exists."""
        with suppress(FileNotFoundError):
            (self.folder / _name(content)).unlink()


def _unusable(path: Path, error: OSError) -> StartFailed:
    return StartFailed(f"diskKV.path {path}: {error.strerror}: give a folder that the worker can write to")


def _name(content: Content) -> str:
    parent = "first" if content.parent is None else content.parent.hex()
    return f"{content.group}-{content.block_hash.hex()}-{parent}"


def _content_of(name: str) -> Content | None:
    if (match := _NAME.fullmatch(name)) is None:
        return None
    parent = None if match[3] == "first" else bytes.fromhex(match[3])
    return Content(bytes.fromhex(match[2]), parent, int(match[1]))


def _try_lock(folder: Path) -> int | None:
    """A descriptor of the folder's lock, or None if another process has it. Raises OSError."""
    path = folder / _LOCK
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return None
            if path.exists() and os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
            os.close(lock)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _remove_others(path: Path, revision: str) -> int:
    """Removes unused folders of other revisions; returns the number of their files."""
    removed = 0
    for other in _numbered(path):
        if other.parent.name != revision and (lock := _try_lock(other)) is not None:
            removed += sum(_content_of(name) is not None for name in os.listdir(other))
            shutil.rmtree(other)
            os.close(lock)
            with suppress(OSError):  # it contains folders in use
                other.parent.rmdir()
    return removed


def _numbered(path: Path) -> Iterator[Path]:
    """All folders of workers that have a lock."""
    for revision in path.iterdir():
        if _REVISION.fullmatch(revision.name) and revision.is_dir():
            yield from [folder for folder in revision.iterdir() if (folder / _LOCK).is_file()]


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _read_all(descriptor: int, block: memoryview) -> int:
    """Fills `block`; returns the number of bytes read."""
    filled = 0
    while filled < len(block) and (count := os.readv(descriptor, [block[filled:]])):
        filled += count
    return filled
