"""Reads recorded workloads: Mooncake's JSON lines or Azure's CSV, distinguished by their first line.

Formats: `timestamp` (ms), `input_length`, `output_length` and `hash_ids` in
https://github.com/kvcache-ai/Mooncake/tree/main/FAST25-release/traces; `TIMESTAMP`, `ContextTokens` and
`GeneratedTokens` in https://github.com/Azure/AzurePublicDataset. Files are read line by line; memory is
limited by `MOST_LINE` and the arrivals.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta

from legato_simulator.workload.workload import Arrival, Workload

BLOCK = 512  # tokens per hash id of a Mooncake trace
MOST_LINE = 1 << 20  # bytes
MOST_REQUESTS = 2_000_000
MOST_TOKENS = 10_000_000  # of one prompt or answer
MOST_SECONDS = 31 * 86_400  # from the first request to the last
MOST_BLOCKS = 50_000_000  # hash ids of a whole trace
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_UTF8_MARK = b"\xef\xbb\xbf"


class TraceError(ValueError):
    """Not a valid, whole trace. The text has file, line and reason."""


class _Mooncake(msgspec.Struct):
    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    output_length: Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
    hash_ids: tuple[int, ...] = ()


def read(path: Path) -> Workload:
    """Reads a whole trace, named like its file without the suffix. Raises TraceError."""
    return Workload(path.stem, tuple(arrivals(path)), BLOCK)


def arrivals(path: Path) -> Iterator[Arrival]:
    """Yields the requests, the first at 0 s. An answer of 0 tokens counts as 1. Raises TraceError."""
    try:
        with path.open("rb") as file:
            yield from _arrivals(path, file)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from None


def _arrivals(path: Path, file: BinaryIO) -> Iterator[Arrival]:
    parse: Callable[[bytes], Arrival] | None = None
    begin, last, requests, blocks = 0.0, 0.0, 0, 0
    for number, line in _lines(path, file):
        try:
            if parse is None:
                parse = _parser(line)
                if parse is _azure:
                    continue
            arrival = parse(line)
            if not requests:
                begin = last = arrival.at
            elif arrival.at < last:
                raise ValueError(
                    f"{last - arrival.at:.6g} s before the line above it; requests must be in order of time"
                )
            if arrival.at - begin > MOST_SECONDS:
                raise ValueError(
                    f"{arrival.at - begin:.6g} s after the first request; a trace takes at most {MOST_SECONDS} s"
                )
            requests, blocks, last = requests + 1, blocks + len(arrival.blocks), arrival.at
            if requests > MOST_REQUESTS or blocks > MOST_BLOCKS:
                raise ValueError(f"too large (at most {MOST_REQUESTS} requests and {MOST_BLOCKS} hash ids)")
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise TraceError(f"{path}:{number}: not a request of a trace: {error}") from None
        yield Arrival(arrival.at - begin, arrival.prompt, arrival.output, arrival.blocks)
    if not requests:
        raise TraceError(f"{path}: no requests")


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise TraceError(f"{path}:{number}: longer than {MOST_LINE} bytes")
        if stripped := line.removeprefix(_UTF8_MARK if number == 1 else b"").strip():
            yield number, stripped


def _parser(first: bytes) -> Callable[[bytes], Arrival]:
    if first.startswith(b"{"):
        return _mooncake
    if tuple(_cells(first)) == _AZURE:
        return _azure
    raise ValueError(f"expected a JSON object (Mooncake) or the header {','.join(_AZURE)} (Azure)")


def _mooncake(line: bytes) -> Arrival:
    row = _DECODER.decode(line)
    if len(row.hash_ids) > (most := -(-row.input_length // BLOCK)):
        raise ValueError(f"{len(row.hash_ids)} hash_ids for {row.input_length} tokens (at most {most})")
    return Arrival(row.timestamp / 1e3, row.input_length, max(1, row.output_length), row.hash_ids)


def _azure(line: bytes) -> Arrival:
    cells = _cells(line)
    if len(cells) != len(_AZURE):
        raise ValueError(f"{len(cells)} fields (expected {len(_AZURE)})")
    at = datetime.fromisoformat(cells[0])
    seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    prompt, output = _tokens(_AZURE[1], cells[1], 1), _tokens(_AZURE[2], cells[2], 0)
    return Arrival(seconds, prompt, max(1, output))


def _cells(line: bytes) -> list[str]:
    return [cell.strip().strip('"') for cell in line.decode().split(",")]


def _tokens(name: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdecimal() and least <= int(text[:20]) <= MOST_TOKENS):
        raise ValueError(f"{name}: not a number of tokens: {text[:40]} ({least} to {MOST_TOKENS})")
    return int(text)


_DECODER = msgspec.json.Decoder(_Mooncake)
