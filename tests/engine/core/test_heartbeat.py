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
