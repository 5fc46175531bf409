"""Further promises of the link in memory, which simulations rely on: faults happen as requested."""

from random import Random

import numpy as np
import pytest
from handoff_pair import wait

from legato_engine.transfer.fakes.memory import Faults, MemoryLink, Network
from legato_engine.transfer.link import Connected, PeerDown, PutDone, PutFailed, PutSpan, Received

SIZE = 256
MESSAGES = [bytes([number]) * 10 for number in range(20)]


class Sides:
    """Two links; a is connected to b, and may write to its memory."""

    def __init__(self, **faults):
        self.network = Network(Random(3))
        self.memory = {name: np.zeros(SIZE, np.uint8) for name in "ab"}
        self.a, self.b = (
            MemoryLink(self.network, name, memory.ctypes.data, SIZE) for name, memory in self.memory.items()
        )
        self.at_a = self.a.connect(self.b.address)
        self.network.run(0)
        ((self.at_b, accepted),) = [(event.connection, event.accepted) for event in self.b.poll()]
        assert accepted
        assert self.a.poll() == [Connected(self.at_a)]
        self.a.attach(self.at_a, self.b.rkey)
        self.network.faults = Faults(**faults)

    def send_all(self):
        for data in MESSAGES:
            self.a.send(self.at_a, data)

    def put(self, length=SIZE):
        self.memory["a"].fill(7)
        span = PutSpan(self.memory["a"].ctypes.data, self.memory["b"].ctypes.data, length)
        self.a.put(self.at_a, [span], 5)

    def heard(self, until=10.0):
        """The messages that b got, when everything has arrived."""
        self.network.run(until)
        return [event.data for event in self.b.poll() if isinstance(event, Received)]


def changed_bits(data, original):
    return sum((one ^ other).bit_count() for one, other in zip(data, original, strict=True))


@pytest.mark.parametrize(
    ("faults", "times", "bits"),
    [({}, 1, 0), ({"lose_message": 1.0}, 0, 0), ({"duplicate": 1.0}, 2, 0), ({"corrupt_message": 1.0}, 1, 1)],
    ids=["none", "lost", "doubled", "one bit damaged"],
)
def test_messages_arrive_at_once_in_order_unless_a_fault_prevents_it(faults, times, bits):
    sides = Sides(**faults)
    sides.send_all()
    sent = [data for data in MESSAGES for _ in range(times)]
    assert [changed_bits(*both) for both in zip(sides.heard(until=0), sent, strict=True)] == [bits] * len(sent)


@pytest.mark.parametrize("reorder", [0.0, 1.0])
def test_delayed_messages_overtake_each_other_only_when_told_so(reorder):
    sides = Sides(delay=1.0, reorder=reorder)
    sides.send_all()
    early = sides.heard(until=0.5)
    late = sides.heard(until=1.0)
    assert 0 < len(early) < len(MESSAGES)
    assert sorted(early + late) == MESSAGES
    assert (early + late == MESSAGES) is (reorder == 0.0)


def test_a_put_does_not_overtake_messages():
    sides = Sides(delay=1.0)
    sides.send_all()
    sides.put()
    wait(sides.memory["b"].any, lambda: sides.network.run(sides.network.now + 0.01))
    assert sides.heard(until=sides.network.now) == MESSAGES
    assert sides.a.poll() == [PutDone(sides.at_a, 5)]


def events(link):
    return [(type(event), event.connection) for event in link.poll()]


def test_nothing_is_put_before_the_remote_key_is_known_and_a_wrong_one_ends_the_connection():
    sides = Sides()
    sides.b.put(sides.at_b, [PutSpan(0, 0, 1)], 9)
    ((failed, connection, tag),) = [(type(event), event.connection, event.tag) for event in sides.b.poll()]
    assert (failed, connection, tag) == (PutFailed, sides.at_b, 9)
    sides.a.attach(sides.at_a, sides.a.rkey)
    assert events(sides.a) == [(PeerDown, sides.at_a)]
