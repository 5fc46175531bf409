"""Outlines of GGUF files: the header and rotary factors are real, all other tensors are holes of zeros."""

import math
from pathlib import Path

from legato_cli.models.shard_outline import ReadRange
from legato_protocol.model_files import gguf_header
from legato_protocol.model_files.gguf_header import BadGguf, Header, TruncatedGguf

_FIRST_READ = 1 << 20  # bytes; the headers of large vocabularies have some megabytes
_LARGEST_HEADER = 256 << 20
_ROTARY = "rope_"  # beginning of the names of tensors that a model's configuration follows from
_LARGEST_ELEMENT = 4  # bytes, of float32


class NotGguf(Exception):
    """The file has another format. The text says why."""


def write(read: ReadRange, path: Path, size: int) -> None:
    """Writes the outline of a file of `size` bytes. Raises NotGguf."""
    content, header = _header(read, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
        file.write(content)
        for info in header.tensors.values():
            end = min(info.offset + math.prod(info.shape) * _LARGEST_ELEMENT, size)
            if info.name.startswith(_ROTARY) and info.offset < end:
                file.seek(info.offset)
                file.write(read(info.offset, end))


def write_header(read: ReadRange, path: Path, size: int) -> None:
    """Writes the beginning of a file of `size` bytes, with all of its header. Raises NotGguf."""
    content, _ = _header(read, size)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _header(read: ReadRange, size: int) -> tuple[bytes, Header]:
    """Returns the beginning of the file and its header: reads twice as much until the header is complete."""
    content = read(0, min(size, _FIRST_READ)) if size else b""
    while True:
        try:
            return content, gguf_header.parse(content)
        except TruncatedGguf as error:
            if len(content) >= min(size, _LARGEST_HEADER):
                raise NotGguf(str(error)) from None
        except BadGguf as error:
            raise NotGguf(str(error)) from None
        content += read(len(content), min(size, 2 * len(content)))
