"""The built-in model without its later layers: what it says means nothing, and costs a fraction."""

import struct
from mmap import ACCESS_READ, mmap
from pathlib import Path

from legato_protocol import gguf_header

ALIGNMENT = 32
LAYER = b"blk."


def write(builtin: Path, path: Path, layers: int) -> Path:
    """A GGUF file with the first `layers`. Offsets of tensors count from where the data begin, so they stay."""
    with builtin.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        tensors = gguf_header.parse(data).tensors
        begin = data.find(_spelled(next(iter(tensors)).encode()))
        infos, at = [], begin
        for name in tensors:
            end = _end(data, at)
            if not name.startswith(LAYER.decode()) or int(name.split(".")[1]) < layers:
                infos.append(data[at:end])
            at = end
        head = bytearray(data[:begin])
        struct.pack_into("<Q", head, 8, len(infos))
        key = _spelled(b"llama.block_count")
        struct.pack_into("<I", head, head.index(key) + len(key) + 4, layers)
        head += b"".join(infos)
        head += bytes(-len(head) % ALIGNMENT)
        with path.open("wb") as out:
            out.write(head)
            out.write(data[at + -at % ALIGNMENT :])
    return path


def _end(data: mmap, at: int) -> int:
    """Where the entry of a tensor ends: its name, its sizes, type and offset."""
    (name,) = struct.unpack_from("<Q", data, at)
    (sizes,) = struct.unpack_from("<I", data, at + 8 + name)
    return at + 8 + name + 4 + 8 * sizes + 4 + 8


def _spelled(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text
