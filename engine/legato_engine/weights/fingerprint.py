"""The fingerprint of weight files: workers with the same fingerprint may continue each other's sequences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

if TYPE_CHECKING:
    from legato_engine.models.config import ModelConfig
    from legato_engine.weights.quantization.formats import Quantization

WHOLE_BYTES = 512 << 20  # models up to this size are hashed completely, which takes about half a second
PIECE_BYTES = 64 << 10
PIECES = 4


class FileSpan(NamedTuple):
    """The position of a tensor in its file, in bytes."""

    start: int
    size: int


def compute(
    files: Mapping[Path, Sequence[FileSpan]],
    config: "ModelConfig",
    quantization: "Quantization | None" = None,
    *,
    whole_bytes: int = WHOLE_BYTES,
) -> str:
    """Hash of the config, of the quantization and of the files' content: 32 hex digits. `files` has the spans of their
    tensors.

    For a model above `whole_bytes` it covers sizes, headers, and PIECES of PIECE_BYTES of each tensor, evenly spaced
    from its first to its last bytes. So it distinguishes tensors that were trained, merged or quantized differently in
    bounded time, but not an edit between the pieces of a tensor. File names are not covered.
    """
    digest = sha256(repr(sorted(asdict(config).items())).encode())
    if quantization is not None:
        digest.update(repr(quantization).encode())
    whole = sum(path.stat().st_size for path in files) <= whole_bytes
    for path, tensors in files.items():
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            for span in [FileSpan(0, size)] if whole else _sampled(tensors, size):
                for chunk in _chunks(file, span):
                    digest.update(chunk)
    return digest.hexdigest()[:32]


def _sampled(tensors: Sequence[FileSpan], size: int) -> Iterator[FileSpan]:
    """The header, then pieces of each tensor."""
    ordered = sorted(tensors)
    yield FileSpan(0, ordered[0].start if ordered else size)
    for start, length in ordered:
        if length <= PIECES * PIECE_BYTES:
            yield FileSpan(start, length)
            continue
        for index in range(PIECES):
            yield FileSpan(start + (length - PIECE_BYTES) * index // (PIECES - 1), PIECE_BYTES)


def _chunks(file: BinaryIO, span: FileSpan) -> Iterator[bytes]:
    file.seek(span.start)
    left = span.size
    while left and (chunk := file.read(min(left, 1 << 20))):
        yield chunk
        left -= len(chunk)
