"""Faults that a self-test detects, over links in memory that may do anything."""

import pytest
import torch

from legato_engine.transfer.fakes.memory import MemoryLink, Network
from legato_engine.transfer.link import Fenced, LinkError, PutDone
from legato_engine.transfer.selftest import blocks
from legato_engine.transfer.selftest.blocks import DeviceBlocks, HostBlocks
from legato_engine.transfer.selftest.check import SelfTest


class Trial:
    """A self-test between two links in memory; network and links may be spoiled before it runs."""

    def __init__(self, make=HostBlocks, kind=MemoryLink):
        self.network = Network()
        self.source, self.target = make(), make()
        size = blocks.COUNT * blocks.BLOCK_BYTES
        self.sender = kind(self.network, "sender", self.source.address, size)
        self.receiver = kind(self.network, "receiver", self.target.address, size)
        for link in (self.sender, self.receiver):
            link.poll = lambda poll=link.poll: (self.network.run(self.network.now + 1.0), poll())[1]

    def run(self):
        SelfTest(self.sender, self.receiver, self.source, self.target, patience=1.0).run()


class Unfenced(MemoryLink):
    """Says that an endpoint is closed, and leaves it open."""

    def fence(self, connection):
        self._report(Fenced(connection))


class Forgetful(MemoryLink):
    """Does not write what it is to put, and says that it did."""

    def put(self, connection, spans, tag):
        self._report(PutDone(connection, tag))


class Wide(MemoryLink):
    """Writes a block more than it is told, where there is room for it."""

    def put(self, connection, spans, tag):
        lowest = min(spans, key=lambda span: span.remote)
        below = lowest.__class__(lowest.local, lowest.remote - lowest.length, lowest.length)
        super().put(connection, [*spans, below], tag)


class Endless(MemoryLink):
    """Puts never end once the peer has closed, whatever is done."""

    def poll(self):
        return [event for event in super().poll() if getattr(event, "tag", 0) == 0]


@pytest.mark.parametrize("make", [HostBlocks, lambda: DeviceBlocks(torch.device("cpu"), lambda: None)])
def test_a_link_that_keeps_its_promises_passes(make):
    Trial(make).run()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Unfenced, "after the receiver had closed"),
        (Forgetful, "did not arrive as they were sent"),
        (Wide, "did not arrive as they were sent"),
        (Endless, "puts did not end within 1 s"),
    ],
)
def test_a_link_that_breaks_one_fails(kind, said):
    with pytest.raises(LinkError, match=said):
        Trial(kind=kind).run()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("corrupt_put", "did not arrive as they were sent"),
        ("break_connection", "the network broke"),
        ("lose_message", "a message did not come within 1 s"),
    ],
)
def test_a_network_that_fails_is_found_with_its_reason(fault, reason):
    trial = Trial()
    setattr(trial.network.faults, fault, 1.0)
    with pytest.raises(LinkError, match=reason):
        trial.run()


def test_memory_of_a_device_is_flushed_before_it_is_summed_up():
    flushed = []
    made = DeviceBlocks(torch.device("cpu"), lambda: flushed.append(made._words.clone()))
    made.fill(1)
    host = HostBlocks()
    host.fill(1)
    assert made.sums() == host.sums()
    assert len(flushed) == 1
