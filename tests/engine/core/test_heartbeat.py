"""What the heartbeat tells of the loop."""

import socket
from queue import SimpleQueue

from legato_engine.core.channel import Channel
from legato_engine.core.frames import Beat
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


def test_every_beat_is_told_to_peers_too_until_the_server_is_gone():
    ours, theirs = socket.socketpair()
    now = 5.0
    pulse, told = Pulse(lambda: now), SimpleQueue()
    pulse.begin()
    now = 7.5
    heartbeat = Heartbeat(Channel(ours), pulse, 0.001)
    heartbeat.tell_peers = told.put
    heartbeat.start()
    assert [told.get(timeout=PATIENCE) for _ in range(2)] == [2.5, 2.5]
    theirs.close()
    heartbeat.join(PATIENCE)
    assert not heartbeat.is_alive()
    ours.close()
