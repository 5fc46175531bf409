"""Opens the parts of a split GGUF file, as llama.cpp's gguf-split writes them; any other file is its only part."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from mmap import ACCESS_COPY, mmap
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from legato_engine.errors import CorruptModel, ModelNotFound, TooLittleMemory, UnsupportedFormat
from legato_engine.models.hyperparameters import rope
from legato_engine.weights import gguf_blocks, gguf_tensors
from legato_protocol.model_files import gguf_header, gguf_parts
from legato_protocol.model_files.gguf_header import BadGguf, Header, TensorInfo

Type = GGMLQuantizationType
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


def check(part: GgufPart, types: Collection[Type]) -> None:
    """Raises UnsupportedFormat for a tensor of a type that is not one of `types`, CorruptModel for one that does not
    consist of whole rows of the file."""
    for info in part.header.tensors.values():
        _check(part, info, types)


def _check(part: GgufPart, info: TensorInfo, types: Collection[Type]) -> None:
    path = part.path
    allowed = ", ".join(kind.name for kind in types)
    if info.type not in types:
        kind = Type(info.type).name if info.type in Type.__members__.values() else f"number {info.type}"
        raise UnsupportedFormat(f"{path}: tensor {info.name} has type {kind}; supported: {allowed}")
    if info.name in rope.GGUF_FACTORS and info.type in gguf_blocks.KINDS:
        raise UnsupportedFormat(f"{path}: tensor {info.name} has type {Type(info.type).name}; supported: F32")
    group = GGML_QUANT_SIZES[Type(info.type)][0]
    if 0 in info.shape or not info.shape or info.shape[-1] % group:
        raise CorruptModel(
            f"{path}: tensor {info.name} of shape {list(info.shape)} does not consist of rows of {group} values"
        )
    end = info.offset + gguf_tensors.byte_size(info)
    if end > len(part.data):
        held = len(part.data)
        raise CorruptModel(f"{path}: truncated: tensor {info.name} ends at byte {end}, the file has {held}")


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
