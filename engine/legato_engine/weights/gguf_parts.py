"""Opens the parts of a split GGUF file, as llama.cpp's gguf-split writes them; any other file is its only part."""

from collections.abc import Sequence
from dataclasses import dataclass
from mmap import ACCESS_COPY, mmap
from pathlib import Path

from legato_engine.errors import CorruptModel, ModelNotFound, TooLittleMemory
from legato_protocol.model_files import gguf_header, gguf_parts
from legato_protocol.model_files.gguf_header import BadGguf, Header, TensorInfo

_COUNT, _TENSORS = "split.count", "split.tensors.count"


@dataclass(frozen=True)
class GgufPart:
    """A mapped file with its header. Of a split one, the first part has the model's metadata."""

    path: Path
    data: mmap
    header: Header


def open_parts(path: Path) -> list[GgufPart]:
    """Maps the file, of a split one all parts, in their order. Raises ModelNotFound or CorruptModel."""
    first = _opened(path)
    count = first.header.metadata.get(_COUNT, 0)
    if not count or count == 1:
        return [first]
    names = gguf_parts.parts(path.name)
    if len(names) != count or path.name != names[0]:
        example = f"{gguf_parts.model_name(path.name)}-00001-of-{count:05}{gguf_parts.SUFFIX}"
        raise CorruptModel(f"{path}: this is one of {count} parts of a model; give the first one, named like {example}")
    for name in names[1:]:
        if not path.with_name(name).is_file():
            raise ModelNotFound(f"{path}: its part {name} is missing")
    return [first, *(_opened(path.with_name(name)) for name in names[1:])]


def tensors(parts: Sequence[GgufPart]) -> dict[str, TensorInfo]:
    """Returns the entries of all parts. Raises CorruptModel if they do not belong to one model."""
    merged = dict[str, TensorInfo]()
    for part in parts:
        if twice := merged.keys() & part.header.tensors.keys():
            raise CorruptModel(f"{part.path}: tensor {min(twice)} is also in another part")
        merged |= part.header.tensors
    declared = parts[0].header.metadata.get(_TENSORS, len(merged))
    if len(parts) > 1 and declared != len(merged):
        raise CorruptModel(f"{parts[0].path}: its parts have {len(merged)} tensors; {_TENSORS} is {declared}")
    return merged


def _opened(path: Path) -> GgufPart:
    data = _mapped(path)
    try:
        return GgufPart(path, data, gguf_header.parse(data))
    except BadGguf as error:
        raise CorruptModel(f"{path}: {error}") from None


def _mapped(path: Path) -> mmap:
    """Returns the file's bytes. Copy-on-write, since torch requires writable memory; the file is never written."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise CorruptModel(f"{path}: the file is empty")
        try:
            return mmap(file.fileno(), 0, access=ACCESS_COPY)
        except OSError as error:
            mib = path.stat().st_size >> 20
            raise TooLittleMemory(f"{path}: its {mib:,} MiB cannot be mapped into memory: {error}") from None
