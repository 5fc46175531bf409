"""What the heartbeat tells of the loop."""

import socket

from legato_engine.core.channel import Channel
from legato_engine.core.frames import Beat, Splitter, decode_from_core
from legato_engine.core.heartbeat import Heartbeat, Pulse

PATIENCE = 20.0  # seconds until a test gives up; nothing waits this long when all is well


def test_a_start_lasts_from_one_sign_of_progress_to_the_next():
    now = 5.0
    pulse = Pulse(lambda: now)
    now = 8.0
    assert pulse.beat() == Beat(0, 3.0)
    pulse.progress()
    now = 9.0
    assert pulse.beat() == Beat(0, 1.0)
    pulse.end()
    assert pulse.beat() == Beat(0, 0.0)


def test_a_beat_tells_the_turn_and_how_long_it_lasts():
    now = 5.0
    pulse = Pulse(lambda: now)
    pulse.end()
    assert pulse.beat() == Beat(0, 0.0)
    pulse.begin()
    now = 7.5
    assert pulse.beat() == Beat(1, 2.5)
    pulse.end()
    assert pulse.beat() == Beat(1, 0.0)
    pulse.begin()
    assert pulse.beat() == Beat(2, 0.0)


def test_a_beat_tells_what_the_step_should_take():
    pulse = Pulse(lambda: 5.0)
    pulse.begin()
    pulse.expect(2.5)
    assert pulse.beat() == Beat(1, 0.0, 2.5)
    pulse.begin()
    assert pulse.beat() == Beat(2, 0.0)


def test_time_in_which_the_process_was_stopped_is_not_counted():
    """A stop of 100 s between two beats, during a step and before the next one."""
    now = [0.0]
    pulse = Pulse(lambda: now[0])
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    pulse.begin()
    now[0] = 1.0
    heartbeat = Heartbeat(Channel(ours), pulse, 0.001, lambda: now[0])
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
    ours.close()
    theirs.close()


def test_it_beats_until_the_server_is_gone():
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    heartbeat = Heartbeat(Channel(ours), Pulse(lambda: 5.0), 0.001)
    heartbeat.start()
    beats: list[bytes] = []
    splitter = Splitter()
    while len(beats) < 2:
        beats += splitter.feed(theirs.recv(4096))
    assert {type(decode_from_core(beat)) for beat in beats} == {Beat}
    theirs.close()
    heartbeat.join(PATIENCE)
    assert not heartbeat.is_alive()
    ours.close()
