"""Reads manifests as text, whatever the locale, from a path or from standard input."""

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from legato_operator.errors import ManifestError

STANDARD_INPUT = "-"
_PATHS = (  # fields of a spec that name a file or folder of this machine
    ("model", "source", "path"),
    ("model", "adapters", "source", "path"),
    ("model", "adapterVolumes", "path"),
    ("gateway", "apiKeys", "path"),
    ("gateway", "tls", "path"),
    ("engine", "profile"),
    ("engine", "speculation", "model", "path"),
)


def read_text(path: Path) -> str:
    """Returns the text of a file, or of standard input for `-`. Raises ManifestError."""
    try:
        content = _whole(sys.stdin.buffer) if str(path) == STANDARD_INPUT else path.read_bytes()
        return content.decode("utf-8-sig")  # some editors write a mark
    except OSError as error:
        raise ManifestError([("", error.strerror or str(error))]) from None
    except UnicodeDecodeError as error:
        raise ManifestError([("", f"not UTF-8 text: {error.reason}")]) from None


@functools.cache
def _whole(stream: BinaryIO) -> bytes:
    """Returns all bytes of a stream, also to later callers: each section of `legato doctor -f -` reads it."""
    return stream.read()


def located(written: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Returns a valid manifest with its relative paths resolved from `folder`, not from the working directory."""
    spec: Any = written["spec"]
    for field in _PATHS:
        spec = _changed(spec, field, folder)
    return {**written, "spec": spec}


def _changed(part: Any, field: tuple[str, ...], folder: Path) -> Any:
    if isinstance(part, list):
        return [_changed(each, field, folder) for each in part]
    if not isinstance(part, Mapping) or field[0] not in part:
        return part
    first, *rest = field
    value = part[first]
    if rest:
        return {**part, first: _changed(value, tuple(rest), folder)}
    shipped = first == "profile" and "/" not in value and not value.endswith(".json")
    return dict(part) if shipped else {**part, first: str(folder / Path(value).expanduser())}
