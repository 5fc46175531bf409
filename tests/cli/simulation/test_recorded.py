"""A recording is read whole and in order, or not at all."""

import pytest
from known_signals import NO_TRAFFIC, decoder, prefiller
from recordings import recorded_round, write

from legato_cli.recording import signal_round
from legato_cli.simulation import recorded
from legato_cli.simulation.recorded import RecordingError
from legato_operator.autoscaler.signals import Signals

QUIET = Signals((prefiller(), decoder()), NO_TRAFFIC)


def _rounds(*times, **changes):
    return [recorded_round(at, QUIET, **changes) for at in times]


def _read(*paths):
    return list(recorded.rounds(paths))


def test_several_files_are_one_recording(tmp_path):
    first, second = write(tmp_path / "1", _rounds(0, 2)), write(tmp_path / "2", _rounds(4))
    assert _read(first, second) == _rounds(0, 2, 4)


def test_blank_lines_are_no_rounds(tmp_path):
    path = write(tmp_path / "1", _rounds(0))
    path.write_bytes(b"\n" + path.read_bytes() + b"\n\n")
    assert _read(path) == _rounds(0)


OTHER = [*_rounds(0), *_rounds(2, service="other")]
ABOVE = r"\S+ s before the round above it"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([_rounds(0, 4, 2)], f"1:3: {ABOVE}"),
        ([_rounds(0, 2, 2)], f"1:3: {ABOVE}"),
        ([_rounds(4), _rounds(0, 2)], f"2:1: 4 {ABOVE[4:]}"),
        ([OTHER], "1:2: a round of prod/other, and those above are of prod/chat"),
        ([[]], "1: no rounds"),
    ],
    ids=["out of order", "the same time", "files in the wrong order", "two services", "empty"],
)
def test_a_recording_that_is_not_whole_and_in_order_is_refused_with_the_line(tmp_path, files, message):
    paths = [write(tmp_path / str(number), rounds) for number, rounds in enumerate(files, 1)]
    with pytest.raises(RecordingError, match=message):
        _read(*paths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: b"\n \n", "1: no rounds"),
        (lambda content: content[:-10], r"1:2: not a round of a recording: .*truncated"),
        (None, "1: No such file"),
    ],
    ids=["blank", "cut off", "missing"],
)
def test_a_file_that_is_damaged_is_refused(tmp_path, change, message):
    path = tmp_path / "1"
    if change is not None:
        write(path, _rounds(0, 2)).write_bytes(change(path.read_bytes()))
    with pytest.raises(RecordingError, match=message):
        _read(path)


@pytest.mark.parametrize(
    ("limit", "most", "message"),
    [
        ("MOST_ROUNDS", 2, "1:3: too large"),
        ("MOST_LINE", len(signal_round.encode(_rounds(0)[0])) - 1, "1:1: longer than"),
    ],
)
def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch, limit, most, message):
    monkeypatch.setattr(recorded, limit, most)
    with pytest.raises(RecordingError, match=message):
        _read(write(tmp_path / "1", _rounds(0, 2, 4)))
