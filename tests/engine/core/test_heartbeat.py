"""Heartbeats say how long the loop has been busy."""

import socket

import pytest

from legato_engine.core.channel import ServerChannel
from legato_engine.core.frames import Beat, Splitter, decode_from_core
from legato_engine.core.reporting.heartbeat import Heartbeat, Pulse

PATIENCE = 90.0  # seconds until a test gives up; nothing waits this long when all is well


def test_a_beat_has_the_number_of_the_step_its_time_and_the_time_that_it_should_take():
    """A start lasts from one sign of progress to the next."""
    now = 5.0
    pulse = Pulse(lambda: now)
    now = 8.0
    beats = [pulse.beat()]
    for change, later in (
        (pulse.progress, 9.0),
        (pulse.end, 9.0),
        (pulse.begin, 11.5),
        (pulse.end, 11.5),
        (pulse.begin, 11.5),
        (lambda: pulse.expect(2.5), 11.5),
        (pulse.begin, 11.5),
    ):
        change()
        now = later
        beats.append(pulse.beat())
    first, second = [Beat(0, 3.0), Beat(0, 1.0), Beat(0, 0.0)], [Beat(1, 2.5), Beat(1, 0.0), Beat(2, 0.0)]
    assert beats == [*first, *second, Beat(2, 0.0, 2.5), Beat(3, 0.0)]


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    with ours, theirs:
        yield ServerChannel(ours), theirs


def test_time_in_which_the_process_was_stopped_is_not_counted(pair):
    """A stop of 100 s between two beats, during a step and before the next one."""
    now = [0.0]
    pulse, (channel, theirs) = Pulse(lambda: now[0]), pair
    pulse.begin()
    now[0] = 1.0
    heartbeat = Heartbeat(channel, pulse, 0.001, lambda: now[0])
    heartbeat.start()
    splitter, beats = Splitter(), []

    def beat():
        while not beats:
            beats.extend(decode_from_core(body) for body in splitter.feed(theirs.recv(4096)))
        return beats.pop(0)

    assert beat().busy == 1.0
    now[0] = 101.0
    while (last := beat()).busy == 1.0:
        pass
    assert 1.0 < last.busy < 1.1
    pulse.begin()
    now[0] = 101.5
    assert pulse.beat().busy == 0.5
    heartbeat.stop()
    heartbeat.join(PATIENCE)


def test_it_beats_until_the_server_is_gone(pair):
    channel, theirs = pair
    heartbeat = Heartbeat(channel, Pulse(lambda: 5.0), 0.001)
    heartbeat.start()
    splitter, beats = Splitter(), []
    while len(beats) < 2:
        beats += splitter.feed(theirs.recv(4096))
    assert {type(decode_from_core(beat)) for beat in beats} == {Beat}
    theirs.close()
    heartbeat.join(PATIENCE)
    assert not heartbeat.is_alive()
