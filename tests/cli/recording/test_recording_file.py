"""A recording is bounded and made of whole lines, whatever the disk does."""

import resource

import pytest

from legato_cli.recording.recording_file import RecordingFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "signals.jsonl"


def test_older_lines_move_on_and_the_oldest_go(path):
    file = RecordingFile(path, 4 * 6)
    for number in range(10):
        file.write(b"%02d" % number)  # 3 bytes with the line break, 2 lines in a file
    assert [each.read_bytes() for each in file.written] == [b"02\n03\n", b"04\n05\n", b"06\n07\n", b"08\n09\n"]
    assert [each.name for each in file.written] == [*(f"signals.jsonl.{n}" for n in (3, 2, 1)), "signals.jsonl"]
    file.close()


@pytest.mark.parametrize("name", ["signals.jsonl", "signals.jsonl.1", "signals.jsonl.3"])
def test_nothing_that_is_there_is_overwritten(path, name):
    path.with_name(name).write_text("kept")
    with pytest.raises(FileExistsError):
        RecordingFile(path, 1000)
    assert path.with_name(name).read_text() == "kept"


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing(path):
    file = RecordingFile(path, 1 << 20)
    file.write(b"a" * 50)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="large"):
            file.write(b"b" * 80)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"a" * 50 + b"\n"
    file.write(b"c" * 80)
    assert path.read_bytes() == b"a" * 50 + b"\n" + b"c" * 80 + b"\n"
    file.close()
