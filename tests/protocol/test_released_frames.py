"""Peers of the last release understand what this version sends, and are understood."""

import msgspec
import pytest
from released_frames import CHANNELS, RELEASES, read

from legato_protocol.wire import handoff, stream
from legato_protocol.wire.stream import in_common

LINES = [(f"{release}: {line['channel']}: {line['name']}", line) for release in RELEASES for line in read(release)]
FRAMES = [(name, line) for name, line in LINES if line["frame"]]


def lines(of):
    return pytest.mark.parametrize("line", [line for _, line in of], ids=[name for name, _ in of])


def continues(now, then):
    """True if `now` is `then` with fields appended, in messages and in parts of them."""
    if not (isinstance(now, list) and isinstance(then, list)):
        return bool(now == then)
    return len(now) >= len(then) and all(map(continues, now, then))


def test_there_is_a_release():
    assert {line["channel"] for _, line in FRAMES} == set(CHANNELS)


@lines(FRAMES)
def test_a_frame_of_the_last_release_is_understood(line):
    frame = bytes.fromhex(line["frame"])
    message = CHANNELS[line["channel"]].decode(frame)
    assert type(message).__name__ == line["name"]
    raw = msgspec.msgpack.decode(frame)
    assert continues(msgspec.msgpack.decode(stream.encode(message)), raw), "every field is where it was"


@lines(LINES)
def test_the_last_release_understands_what_is_sent_now(line):
    """It reads fields by their place and skips those after the last that it knows."""
    now = CHANNELS[line["channel"]].schemas()[line["name"]]
    assert now["fields"][: len(line["fields"])] == line["fields"], "a field was removed, moved or given another type"
    assert now["required"] == line["required"], "a field that was appended needs a default: the last release omits it"


def test_the_versions_of_the_last_release_are_spoken():
    """It greets with version 2 (1 between workers), and refuses any other."""
    assert in_common(2, 0)
    assert in_common(1, 0, (handoff.OLDEST, handoff.VERSION))
    assert (stream.VERSION, handoff.VERSION) == (2, 1)


@pytest.mark.parametrize(
    ("version", "oldest", "spoken"),
    [
        (4, 0, True),
        (5, 0, False),
        (2, 0, False),
        (3, 0, True),
        (5, 4, True),
        (6, 5, False),
        (2, 1, False),
        (9, 1, True),
    ],
)
def test_a_version_in_common_is_enough(version, oldest, spoken):
    assert in_common(version, oldest, own=(3, 4)) is spoken
