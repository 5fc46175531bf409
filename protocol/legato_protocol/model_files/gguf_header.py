"""The header of a GGUF file: metadata and positions of tensors. Engine (weights) and gateway (tokenizer) both read it.

Parses a buffer (a mapped file) with the standard library: the gateway needs no numpy for it, and a tokenizer of 50,000
tokens takes tens of milliseconds. The engine reads the tensors themselves.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from legato_protocol.model_files import lfs_pointer

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class BadGguf(ValueError):
    """The buffer does not begin with the header of a GGUF file of a supported version."""


class TruncatedGguf(BadGguf):
    """The buffer ends within its header."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's entry: `shape` is row-major, `type` is ggml's number, `offset` counts bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def load(path: Path) -> Header:
    """Reads the header of a file. Raises OSError, BadGguf, and ValueError for an empty file."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return parse(data)


def parse(data: bytes | mmap) -> Header:
    """Parses the header at the start of `data`. Raises BadGguf, whose text names the problem."""
    if data[:4] != MAGIC:
        other = f"begins with {data[:4]!r} and not with {MAGIC!r}: not a GGUF file"
        raise BadGguf(lfs_pointer.advice(data[:64]) or other)
    reader = _Reader(data)
    try:
        version = reader.scalar("I")
        if version not in VERSIONS:
            raise BadGguf(
                f"GGUF version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} (little-endian) can be read"
            )
        tensor_count, key_count = reader.scalar("Q"), reader.scalar("Q")
        metadata = {}
        for _ in range(key_count):
            key = reader.string()
            metadata[key] = reader.value(reader.scalar("I"))
        return Header(metadata, _tensors(reader, tensor_count, metadata))
    except struct.error:
        raise TruncatedGguf(f"ends within its header: truncated at {len(data)} bytes") from None
    except RecursionError:
        raise BadGguf("arrays in its header are nested too deeply") from None
    except UnicodeDecodeError as error:
        raise BadGguf(f"a string in its header is not UTF-8: {error}") from None


def _tensors(reader: "_Reader", count: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
    entries = [reader.tensor() for _ in range(count)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise BadGguf(f"general.alignment is {alignment!r}; a whole number above 0 is needed")
    start = -(-reader.at // alignment) * alignment
    tensors = {name: TensorInfo(name, shape, kind, start + offset) for name, shape, kind, offset in entries}
    if len(tensors) < len(entries):
        raise BadGguf("two tensors in its header have the same name")
    return tensors


class _Reader:
    """A cursor in the header. Reading past the end raises struct.error."""

    def __init__(self, data: bytes | mmap) -> None:
        self.data = data
        self.at = len(MAGIC)

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return value

    def string(self) -> str:
        return self.strings(1)[0]

    def strings(self, count: int) -> list[str]:
        data, at, length_at = self.data, self.at, struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            end = at + 8 + length_at(data, at)[0]
            if end > len(data):
                raise struct.error
            strings.append(data[at + 8 : end].decode())
            at = end
        self.at = at
        return strings

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(self.scalar("I"), self.scalar("Q"))
        if kind not in _SCALARS:
            raise BadGguf(f"a value in its header has the unknown type {kind}")
        return self.scalar(_SCALARS[kind])

    def array(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return self.strings(count)
        if kind == _ARRAY:
            return [self.value(_ARRAY) for _ in range(count)]
        if kind not in _SCALARS:
            raise BadGguf(f"an array in its header has the unknown type {kind}")
        size = count * struct.calcsize("<" + _SCALARS[kind])
        if size > len(self.data) - self.at:
            raise struct.error
        values = struct.unpack_from(f"<{count}{_SCALARS[kind]}", self.data, self.at)
        self.at += size
        return list(values)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self.string(), self.scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise BadGguf(f"tensor {name} has {dimensions} dimensions; at most {_MAX_DIMENSIONS} are allowed")
        shape = tuple(self.scalar("Q") for _ in range(dimensions))
        return name, shape[::-1], self.scalar("I"), self.scalar("Q")
