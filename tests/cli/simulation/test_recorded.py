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


def test_several_files_are_one_recording_without_its_blank_lines(tmp_path):
    first, second = write(tmp_path / "1", _rounds(0, 2)), write(tmp_path / "2", _rounds(4))
    first.write_bytes(b"\n" + first.read_bytes() + b"\n\n")
    assert _read(first, second) == _rounds(0, 2, 4)


WHOLE = [_rounds(0, 2, 4)]
ONE_LINE = len(signal_round.encode(_rounds(0)[0]))


@pytest.mark.parametrize(
    ("files", "changed", "limits", "message"),
    [
        pytest.param([_rounds(0, 4, 2)], None, {}, r"1:3: \S+ s before the round above it", id="out of order"),
        pytest.param([_rounds(0, 2, 2)], None, {}, r"1:3: \S+ s before the round above it", id="the same time"),
        pytest.param([_rounds(4), _rounds(0, 2)], None, {}, "2:1: 4 s before the round above it", id="order of files"),
        pytest.param(
            [[*_rounds(0), *_rounds(2, service="other")]],
            None,
            {},
            "1:2: a round of prod/other, and those above are of prod/chat",
            id="two services",
        ),
        pytest.param([[]], None, {}, "1: no rounds", id="empty"),
        pytest.param(WHOLE, lambda content: b"\n \n", {}, "1: no rounds", id="blank"),
        pytest.param(
            WHOLE, lambda content: content[:-10], {}, "1:3: not a round of a recording: .*trunc", id="cut off"
        ),
        pytest.param(WHOLE, None, {"MOST_ROUNDS": 2}, "1:3: too large", id="too many"),
        pytest.param(WHOLE, None, {"MOST_LINE": ONE_LINE - 1}, "1:1: longer than", id="too long"),
    ],
)
def test_what_is_not_a_whole_recording_is_refused_with_the_line(tmp_path, monkeypatch, files, changed, limits, message):
    for limit, most in limits.items():
        monkeypatch.setattr(recorded, limit, most)
    paths = [write(tmp_path / str(number), rounds) for number, rounds in enumerate(files, 1)]
    if changed is not None:
        paths[0].write_bytes(changed(paths[0].read_bytes()))
    with pytest.raises(RecordingError, match=message):
        _read(*paths)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecordingError, match="1: No such file"):
        _read(tmp_path / "1")
