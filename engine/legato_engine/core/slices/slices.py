"""A worker's time slices of the cores that it shares with others."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Protocol

from legato_engine.core.slices import policy
from legato_engine.core.slices.policy import SliceClaim, SliceState
from legato_engine.core.slices.table import SliceTable

PATIENCE = 2.0  # minimum seconds that others wait for a step to end: a stopped process must not stop them, too
LATE = 4  # multiple of the step's expected duration, likewise
CHECK = 0.05  # seconds between checks of whether workers that are waited for still run
SWEEP = 1.0  # seconds between checks of whether workers that nobody waits for still run
POLL = 0.0005  # seconds between checks of whether prompts may go on
LOCK = 0.1  # seconds that the table's lock is waited for: a process that was stopped may hold it
REST = 0.5  # share of a step with tokens for which prompts of others go on after it, …
LONGEST_REST = 0.2  # … in seconds: tokens of others must not wait for a share of a first step that compiles kernels
_FADE = 0.9  # weight of earlier steps in `stretch`


class TimeSlices(Protocol):
    """Time slices of one worker: the loop begins one for each step, the compute thread ends it."""

    @property
    def shared(self) -> bool:
        """True if the workers have more threads than there are cores, so that steps wait for slices."""
        ...

    @property
    def stretch(self) -> float:
        """Ratio of the duration of recent steps, with the wait for their slices, to their duration without it; 1 if the
        cores are not shared."""
        ...

    @property
    def waited(self) -> float:
        """Total seconds that steps waited for their slices."""
        ...

    @property
    def wakeup(self) -> SliceTable | None:
        """The table, whose descriptor is readable after a slice was granted; None if slices are granted immediately."""
        ...

    @property
    def timer(self) -> float:
        """Seconds until `begin` should be called again without a grant."""
        ...

    def clear_wakeup(self) -> None:
        """Clears the wake-up, so that the descriptor is unreadable until a slice is granted."""
        ...

    def begin(self, claim: Callable[[], SliceClaim]) -> float | None:
        """Begins a slice. Returns the seconds that its step should take at most, or None if the worker must wait."""
        ...

    def give_way(self) -> None:
        """Waits while a step with tokens of another worker runs, if this step only computes prompts. Called in the
        compute thread, between two layers."""
        ...

    def expect(self, seconds: float) -> None:
        """The step of this slice should take `seconds`; 0: unknown."""
        ...

    def end(self, slack: float) -> None:
        """Ends the step. Decoding sequences can wait `slack` seconds for the next one; inf: none decodes."""
        ...

    def withdraw(self) -> None:
        """Gives up a slice or a claim, because there is nothing to compute."""
        ...

    def close(self) -> None: ...


class SharedCores:
    """Implements `TimeSlices` by a table that all workers on these cores share.

    A worker keeps its slice until another one waits or runs. While a stopped process holds the table's lock, workers
    compute without slices. Raises OSError, TableFull.
    """

    def __init__(
        self,
        folder: Path,
        threads: int,
        cores: int,
        clock: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._table = SliceTable(folder, min(threads, cores))
        self._cores = cores
        self._clock, self._sleep = clock, sleep
        self._claimed = False  # since `begin` returned None
        self._check_at = inf  # when others are checked, or claims may preempt prompts
        self._jammed = inf  # since when the lock has not been released
        self._began = self._checked = self._swept = 0.0
        self._recent_wait = self._recent_steps = 0.0  # fading sums of seconds
        self.waited = 0.0

    @property
    def shared(self) -> bool:
        return self._table.threads() > self._cores

    @property
    def stretch(self) -> float:
        return 1 + self._recent_wait / self._recent_steps if self._recent_steps and self.shared else 1.0

    @property
    def timer(self) -> float:
        return max(0.0, self._check_at - self._clock()) if self._claimed else inf

    @property
    def wakeup(self) -> SliceTable:
        return self._table

    def clear_wakeup(self) -> None:
        self._table.clear_wakeup()

    def begin(self, claim: Callable[[], SliceClaim]) -> float | None:
        now = self._clock()
        self._sweep(now)
        if not self.shared:
            self._stop(now)
            self._began = now
            return inf
        self._table.write(made := claim())
        state = self._table.state
        if self._claimed and state is SliceState.WAITING:
            if now >= self._check_at:
                self._check(now)
        elif state is not SliceState.HOLDING or not (self._claimed or self._keeps(now)):
            self._claim(now)
        self._claimed = self._table.state is not SliceState.HOLDING
        if self._claimed:
            times = self._checked + CHECK, made.preempts, made.due, self._table.rest()
            self._check_at = min(each for each in times if each > now)
            return None
        self._count_wait(now - self._table.since)
        self._began = now
        self._table.wait_until(now + PATIENCE)
        return policy.seconds(self._table.number, self._table.read(), now)

    def give_way(self) -> None:
        while self._table.running() > self._cores and policy.gives_way(self._table.number, self._table.read()):
            self._sleep(POLL)
            if (now := self._clock()) >= self._checked + CHECK:
                self._check(now)
            if self._jammed < inf:
                return

    def expect(self, seconds: float) -> None:
        self._table.wait_until(self._began + max(PATIENCE, LATE * seconds))

    def end(self, slack: float) -> None:
        now = self._clock()
        self._table.postpone(now + slack)
        if slack < inf:
            self._table.rest_until(now + min(REST * (now - self._began), LONGEST_REST))
        self._recent_steps = self._recent_steps * _FADE + now - self._began
        if self._contended:
            self._leave(now)

    def withdraw(self) -> None:
        now = self._clock()
        self._stop(now)
        self._sweep(now)

    def close(self) -> None:
        self._stop(self._clock())
        self._table.close()

    @property
    def _contended(self) -> bool:
        """True if this worker must not keep its slice for another step."""
        return self._table.waiting() or self._table.running() > self._cores

    def _keeps(self, now: float) -> bool:
        """Keeps the slice of the last step for the next one, unless it is contended."""
        if self._contended:
            return False
        self._table.since = now
        return True

    def _claim(self, now: float) -> None:
        with self._locked(now) as locked:
            self._table.state, self._table.since = SliceState.WAITING, now
            self._checked = now
            self._grant(now, locked)

    def _check(self, now: float) -> None:
        """Takes slices from workers that have ended, or whose steps take far too long."""
        self._checked = now
        with self._locked(now) as locked:
            if locked:
                self._table.free_ended()
                self._table.pass_over_late(now)
            self._grant(now, locked)

    def _sweep(self, now: float) -> None:
        """Frees the entries of idle workers that were killed, which would count as sharing the cores."""
        if now >= self._swept + SWEEP and self.shared:
            self._swept = now
            with self._locked(now) as locked:
                if locked:
                    self._table.free_ended()

    def _stop(self, now: float) -> None:
        self._claimed = False
        self._table.postpone(inf)
        if self._table.state is not SliceState.IDLE:
            self._leave(now)

    def _leave(self, now: float) -> None:
        with self._locked(now) as locked:
            self._table.state = SliceState.IDLE
            self._grant(now, locked)

    def _grant(self, now: float, locked: bool) -> None:
        """Begins all slices that can begin; without the lock only its own, after others had time to release it."""
        while locked and (numbers := policy.next_workers(self._table.read(), self._cores, now)):
            for number in numbers:
                self._table.grant(number, now + PATIENCE)
        if self._table.state is SliceState.WAITING and now >= self._jammed + PATIENCE:
            self._table.state = SliceState.HOLDING

    @contextmanager
    def _locked(self, now: float) -> Iterator[bool]:
        with self._table.locked(LOCK if self._jammed == inf else 0.0) as locked:
            self._jammed = inf if locked else min(self._jammed, now)
            yield locked

    def _count_wait(self, seconds: float) -> None:
        self._recent_wait = self._recent_wait * _FADE + seconds
        self.waited += seconds


class OwnCores:
    """Implements `TimeSlices` for a worker that shares no cores."""

    shared = False
    stretch = 1.0
    waited = 0.0
    wakeup = None
    timer = inf

    def clear_wakeup(self) -> None:
        pass

    def give_way(self) -> None:
        pass

    def begin(self, claim: Callable[[], SliceClaim]) -> float | None:
        return inf

    def expect(self, seconds: float) -> None:
        pass

    def end(self, slack: float) -> None:
        pass

    def withdraw(self) -> None:
        pass

    def close(self) -> None:
        pass
