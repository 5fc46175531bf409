"""A device that finishes late: nothing is read before it was written there, in random schedules, with checksums and
without; and nothing is granted that a step may still write to.

Two workers send to each other over the link in memory, from arenas that steps write to later than they return.
"""

import ctypes
from random import Random

import pytest
from budget import times
from handoff_pair import BLOCK, HASHES, TOKENS, Pair
from staged_arena import UNUSED

from legato_engine.transfer.device.interface import POLL_INTERVAL
from legato_engine.transfer.fakes.late_device import LateEvent, LateStream
from legato_engine.transfer.fakes.memory import Faults
from legato_engine.transfer.session.events import Aborted, Arrived, Committed, Granted, GrantRevoked, Released

SCHEDULES = times(80)
STALE, COUNT = 99, 4


class WatchedLink:
    """Notes each put whose blocks were not written yet, or not copied to where it is sent from."""

    def __init__(self, link):
        self._link = link
        self.early = self.puts = 0

    def __getattr__(self, name):
        return getattr(self._link, name)

    def put(self, connection, spans, tag):
        self.puts += 1
        for span in spans:
            self.early += not {STALE, UNUSED}.isdisjoint(ctypes.string_at(span.local, span.length))
        self._link.put(connection, spans, tag)


class Schedule:
    """One hand-off of four blocks, pushed in random parts as steps return, on a device that is late by up to a second;
    perhaps cancelled, revoked, or cut off on the way."""

    def __init__(self, seed, checksum, device):
        random = self.random = Random(seed)
        slots = (random, 4, random.randint(1, 3), random.choice([0.0, 0.3, 1.0]))
        settings = {"staged": {"staged": slots}, "direct": {"direct": (random, slots[-1])}}.get(device, {})
        self.pair = Pair(checksum=checksum, **settings)
        self.pair.network.random = random
        self.pair.network.faults = Faults(delay=random.choice([0.0, 0.2]))
        self.device = LateStream(self.pair.network, random, random.choice([0.0, 0.3, 1.0]))
        sender = self.pair.sender
        sender.arena[:] = STALE
        self.link = sender.agent._sender._queue._source._link = WatchedLink(sender.link)
        self.parts = sorted(random.sample(range(1, COUNT), random.randint(0, COUNT - 1)))
        self.pushed, self.granted, self.regrants = 0, False, 0
        self.mischief = random.choice([None, None, None, "cancel", "refuse", "revoke", "die"])

    def step(self, first, last):
        """Returns before the device has written the blocks."""

        def write():
            for block in range(first, last):
                self.pair.sender.arena[block] = 10 + block

        self.pair.sender.agent.after_step(self.device.begin(write))

    def turn(self):
        if not self.granted or self.pushed == COUNT:
            return
        last = next((part for part in self.parts if part > self.pushed), COUNT)
        self.step(self.pushed, last)
        agent = self.pair.sender.agent
        agent.push(1, self.pushed, range(self.pushed, last), HASHES[self.pushed : last])
        self.pushed = last
        if last == COUNT:
            agent.finish(1, TOKENS, COUNT * BLOCK, ())

    def disturb(self):
        match self.mischief:
            case "cancel":
                self.pair.sender.agent.abort(1, "cancelled")
            case "refuse":
                self.pair.receiver.agent.abort(1, "cancelled")
            case "revoke":
                self.pair.receiver.agent.revoke(1)
            case "die":
                self.pair.receiver.link.close()
                self.pair.sender.agent.abort(1, "deadline")

    def run(self):
        self.pair.expect()
        self.pair.grant()
        trouble = self.random.uniform(0, 3)
        for _ in range(160):
            for side in (self.pair.sender, self.pair.receiver):
                side.poll()
            self.follow()
            self.turn()
            if self.mischief and self.pair.network.now >= trouble:
                self.disturb()
                self.mischief = None
            if self.over():
                return
            self.pair.network.run(self.pair.network.now + self.random.choice([0.02, 0.1]))
        raise AssertionError("it hangs")

    def follow(self):
        sender = self.pair.sender
        revoked = len(sender.events(GrantRevoked))
        self.granted = len(sender.events(Granted)) > revoked
        if not self.granted:
            self.pushed = 0
        if len(self.pair.receiver.events(GrantRevoked)) > self.regrants:
            self.regrants += 1
            self.pair.grant()
        if sender.events(Aborted) and self.device.idle:
            sender.arena[:] = 0  # whoever reads the blocks still is too late

    def over(self):
        ended = self.pair.sender.events(Committed) + self.pair.sender.events(Aborted)
        sides = (self.pair.sender.staged, self.pair.receiver.staged)
        idle = self.device.idle and all(staged.idle for staged in sides if staged)
        return bool(ended or self.pair.receiver.events(Released)) and idle

    def check(self):
        assert self.link.early == 0, "a block was put before it was written"
        for _ in self.pair.receiver.events(Arrived):
            for block in range(COUNT):
                assert (self.pair.receiver.arena[block] == 10 + block).all(), "a wrong block was committed"


@pytest.mark.parametrize("device", ["host", "staged", "direct"])
@pytest.mark.parametrize("checksum", [True, False], ids=["checksum", "no checksum"])
def test_no_put_begins_before_its_step_has_written(checksum, device):
    arrived = puts = 0
    for seed in range(SCHEDULES):
        schedule = Schedule(seed, checksum, device)
        schedule.run()
        schedule.check()
        arrived += len(schedule.pair.receiver.events(Arrived))
        puts += schedule.link.puts
    assert arrived > 0.4 * SCHEDULES
    assert puts > SCHEDULES


def test_a_grant_waits_for_steps_that_may_write_to_its_blocks():
    """Blocks that a sequence gave up are granted at once, while its last step is still under way on the device."""
    pair, event = Pair(), LateEvent()
    pair.receiver.agent.after_step(event)
    pair.begin()
    assert not pair.sender.events(Granted)
    assert pair.receiver.agent.next_timer() == POLL_INTERVAL
    event.passed = True
    pair.run()
    assert pair.sender.events(Granted)
