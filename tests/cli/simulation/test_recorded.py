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


@pytest.mark.parametrize("times", [(0, 4, 2), (0, 2, 2)])
def test_rounds_out_of_order_are_refused_with_their_line(tmp_path, times):
    path = write(tmp_path / "1", _rounds(*times))
    with pytest.raises(RecordingError, match=r"1:3: \S+ s before the round above it"):
        _read(path)


def test_files_in_the_wrong_order_are_refused(tmp_path):
    first, second = write(tmp_path / "1", _rounds(0, 2)), write(tmp_path / "2", _rounds(4))
    with pytest.raises(RecordingError, match="1:1: 4 s before the round above it"):
        _read(second, first)


def test_rounds_of_two_services_are_refused(tmp_path):
    path = write(tmp_path / "1", [*_rounds(0), *_rounds(2, service="other")])
    with pytest.raises(RecordingError, match="1:2: a round of prod/other, and those above are of prod/chat"):
        _read(path)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_rounds_is_refused(tmp_path, content):
    (tmp_path / "1").write_bytes(content)
    with pytest.raises(RecordingError, match="1: no rounds"):
        _read(tmp_path / "1")


def test_a_line_that_was_cut_off_is_told(tmp_path):
    path = write(tmp_path / "1", _rounds(0, 2))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(RecordingError, match=r"1:2: not a round of a recording: .*truncated"):
        _read(path)


def test_what_is_too_large_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "1", _rounds(0, 2, 4))
    monkeypatch.setattr(recorded, "MOST_ROUNDS", 2)
    with pytest.raises(RecordingError, match="1:3: too large"):
        _read(path)
    monkeypatch.setattr(recorded, "MOST_LINE", len(signal_round.encode(_rounds(0)[0])) - 1)
    with pytest.raises(RecordingError, match="1:1: longer than"):
        _read(path)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(RecordingError, match="none: No such file"):
        _read(tmp_path / "none")
