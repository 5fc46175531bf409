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


LINE = signal_round.encode(_rounds(0)[0])
TWO_SERVICES = [*_rounds(0), *_rounds(2, service="other")]
REFUSED = {
    "out of order": ([_rounds(0, 4, 2)], {}, r"1:3: \S+ s before the round above it"),
    "the same time": ([_rounds(0, 2, 2)], {}, r"1:3: \S+ s before the round above it"),
    "files in the wrong order": ([_rounds(4), _rounds(0, 2)], {}, "2:1: 4 s before the round above it"),
    "two services": ([TWO_SERVICES], {}, "1:2: a round of prod/other, and those above are of prod/chat"),
    "empty": ([b""], {}, "1: no rounds"),
    "blank": ([b"\n \n"], {}, "1: no rounds"),
    "cut off": ([LINE + b"\n" + LINE[:-10]], {}, "1:2: not a round of a recording: .*truncated"),
    "missing": ([], {}, "1: No such file"),
    "too many rounds": ([_rounds(0, 2, 4)], {"MOST_ROUNDS": 2}, "1:3: too large"),
    "a line that is too long": ([_rounds(0)], {"MOST_LINE": len(LINE) - 1}, "1:1: longer than"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_recording_that_is_not_whole_and_in_order_is_refused_with_the_line(tmp_path, monkeypatch, case):
    files, limits, message = REFUSED[case]
    for limit, most in limits.items():
        monkeypatch.setattr(recorded, limit, most)
    paths = [tmp_path / "1", tmp_path / "2"][: max(1, len(files))]
    for path, content in zip(paths, files, strict=False):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            write(path, content)
    with pytest.raises(RecordingError, match=message):
        _read(*paths)
