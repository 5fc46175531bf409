"""Outlines of safetensors files: weights are holes of zeros, scales and other tensors are real.

The memory that a model takes follows from them, and they are a small part of the file.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_WEIGHTS = ("weight", "qweight", "weight_packed", "_proj", "_blocks")  # ends of names; the last two of gpt-oss
_LARGEST_HEADER = 100_000_000  # bytes, as safetensors' own limit
ReadRange = Callable[[int, int], bytes]  # of the file, from the first byte to the one after the last


class NotSafetensors(Exception):
    """The file has another format. The text says why."""


def write(read: ReadRange, path: Path, size: int, threads: ThreadPoolExecutor) -> None:
    """Writes the outline of a file of `size` bytes. Raises NotSafetensors."""
    start = 8 + int.from_bytes(read(0, 8), "little")
    header = read(8, start) if start <= min(size, _LARGEST_HEADER) else b""
    try:
        spans = _spans_without_weights(json.loads(header))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise NotSafetensors("it does not begin with the header of a safetensors file") from None
    with path.open("wb") as file:
        file.truncate(size)
        file.write((start - 8).to_bytes(8, "little") + header)
        contents = threads.map(lambda span: read(start + span[0], start + span[1]), spans)
        for (begin, _), content in zip(spans, contents, strict=True):
            file.seek(start + begin)
            file.write(content)


def _spans_without_weights(header: dict[str, dict[str, list[int]]]) -> list[tuple[int, int]]:
    """Returns the places of tensors that are not weights, after the header; neighbours are one span."""
    names = (name for name in header if name != "__metadata__" and not name.endswith(_WEIGHTS))
    spans = list[tuple[int, int]]()
    for begin, end in sorted((begin, end) for begin, end in (header[name]["data_offsets"] for name in names)):
        first = spans.pop()[0] if spans and spans[-1][1] == begin else begin
        spans.append((first, end))
    return [(begin, end) for begin, end in spans if end > begin]
