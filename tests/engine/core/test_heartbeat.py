"""What the heartbeat tells of the loop."""

from legato_engine.core.frames import Beat
from legato_engine.core.heartbeat import Pulse


def test_a_beat_tells_the_turn_and_how_long_it_lasts():
    now = 5.0
    pulse = Pulse(lambda: now)
    assert pulse.beat() == Beat(0, 0.0)
    pulse.begin()
    now = 7.5
    assert pulse.beat() == Beat(1, 2.5)
    pulse.end()
    assert pulse.beat() == Beat(1, 0.0)
    pulse.begin()
    assert pulse.beat() == Beat(2, 0.0)
