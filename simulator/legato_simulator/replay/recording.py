"""Reads recordings of `legato record` line by line. Files that are damaged or out of order are refused."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from legato_simulator.replay import signal_round
from legato_simulator.replay.signal_round import BadRound, SignalRound

MOST_LINE = 8 << 20  # bytes
MOST_ROUNDS = 2_000_000  # 46 days


class RecordingError(ValueError):
    """Not a valid, whole recording. The text has file, line and reason."""


def rounds(paths: Sequence[Path]) -> Iterator[SignalRound]:
    """Yields rounds of one service, from files in order of time. Raises RecordingError, also after the first rounds."""
    before: SignalRound | None = None
    count = 0
    for path in paths:
        in_file = 0
        for number, made in _read(path):
            try:
                _check(before, made)
            except BadRound as error:
                raise RecordingError(f"{path}:{number}: {error}") from None
            count, in_file, before = count + 1, in_file + 1, made
            if count > MOST_ROUNDS:
                raise RecordingError(f"{path}:{number}: too large (at most {MOST_ROUNDS} rounds)")
            yield made
        if not in_file:
            raise RecordingError(f"{path}: no rounds")


def _check(before: SignalRound | None, made: SignalRound) -> None:
    if before is None:
        return
    if made.time <= before.time:
        raise BadRound(f"{before.time - made.time:.6g} s before the round above it; rounds must be in order of time")
    names = [f"{each.namespace}/{each.service}" for each in (before, made)]
    if names[0] != names[1]:
        raise BadRound(f"a round of {names[1]}, and those above are of {names[0]}")


def _read(path: Path) -> Iterator[tuple[int, SignalRound]]:
    try:
        with path.open("rb") as file:
            for number, line in _lines(path, file):
                try:
                    yield number, signal_round.decode(line)
                except BadRound as error:
                    raise RecordingError(f"{path}:{number}: not a round of a recording: {error}") from None
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror or error}") from None


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    number = 0
    while line := file.readline(MOST_LINE + 1):
        number += 1
        if len(line) > MOST_LINE:
            raise RecordingError(f"{path}:{number}: longer than {MOST_LINE} bytes")
        if stripped := line.strip():
            yield number, stripped
