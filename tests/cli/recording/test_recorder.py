"""Rounds are written one after the other; what fails is told once and nothing is written twice."""

import asyncio
import errno

import pytest
from known_signals import NO_TRAFFIC
from recordings import BEGIN, recorded_round

from legato_cli.recording import signal_round
from legato_cli.recording.recorder import SignalRecorder
from legato_cli.ui.target import NoTarget
from legato_operator.autoscaler.signals import Signals

QUIET = Signals((), NO_TRAFFIC)


class _World:
    """A clock in virtual time, a service that may fail, and a disk that may be full."""

    def __init__(self):
        self.at, self.offset = 0.0, 0.0
        self.failing, self.full = set(), set()  # times at which it does
        self.lines, self.told = [], []

    def now(self):
        return self.at

    async def sleep(self, seconds):
        self.at += seconds

    async def round(self):
        if self.at in self.failing:
            raise NoTarget("no service is running")
        return recorded_round(self.at + self.offset, QUIET)

    def write(self, line):
        if self.at in self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.lines.append(line)

    def record(self, seconds):
        recorder = SignalRecorder(self, self, self, self.told.append)
        asyncio.run(recorder.run(seconds))
        return recorder.rounds

    @property
    def times(self):
        return [signal_round.decode(line).time - BEGIN for line in self.lines]


@pytest.fixture
def world():
    return _World()


def test_a_round_is_written_every_two_seconds(world):
    assert world.record(10) == 5
    assert world.times == [0, 2, 4, 6, 8]
    assert not world.told


@pytest.mark.parametrize(
    ("failing", "full", "written", "reason"),
    [
        ({}, {4, 6, 8}, [0, 2, 10, 12], "cannot write: No space left on device"),
        ({4, 6, 8}, {}, [0, 2, 10, 12], "no service is running"),
    ],
    ids=["a full disk", "a service that is gone"],
)
def test_a_failure_is_reported_once_and_recording_goes_on_after_it(world, failing, full, written, reason):
    world.failing, world.full = failing, full
    world.record(14)
    assert world.times == written
    assert world.told == [f"{reason}; trying again", "records again; 3 rounds are missing"]


def test_a_service_that_cannot_be_asked_at_first_ends_it(world):
    world.failing = {0}
    with pytest.raises(NoTarget):
        world.record(8)


def test_a_clock_that_was_set_back_never_puts_rounds_out_of_order(world):
    async def sleep(seconds):
        world.at += seconds
        world.offset = -5 if world.at >= 4 else 0

    world.sleep = sleep
    world.record(14)
    assert world.times == [0, 2, 3, 5, 7]
    assert world.told[0].startswith("the clock was set back by")
    assert len(world.told) == 2
