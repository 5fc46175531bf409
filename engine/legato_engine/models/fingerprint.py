"""A name for the content of weight files: workers of one fingerprint may continue one another's sequences."""

from collections.abc import Iterable
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from legato_engine.models.config import ModelConfig

WHOLE_FILE_BYTES = 512 << 20  # up to this size every byte counts: about half a second of hashing
SAMPLE_BYTES = 1 << 20
SAMPLES = 128


def of(files: Iterable[Path], config: "ModelConfig") -> str:
    """Hash of the config and of the files' content: 32 hex digits.

    Of a file above WHOLE_FILE_BYTES the size, the first and the last SAMPLE_BYTES and evenly spaced samples are taken:
    enough to tell two models apart, in bounded time. File names do not count.
    """
    digest = sha256(repr(sorted(asdict(config).items())).encode())
    for path in files:
        digest.update(_content(path))
    return digest.hexdigest()[:32]


def _content(path: Path) -> bytes:
    size = path.stat().st_size
    digest = sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        if size <= WHOLE_FILE_BYTES:
            while chunk := file.read(SAMPLE_BYTES):
                digest.update(chunk)
        else:
            for index in range(SAMPLES):
                file.seek((size - SAMPLE_BYTES) * index // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()
