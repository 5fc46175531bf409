"""Ranks as threads of this process that die, or stand still, at a chosen message or sum.

Only processes are replaced: the core, the first rank, connections, messages, followers and shared memory are those of a
worker. A rank's death ends the core by `first._end_too`, where a worker's process ends.
"""

import mmap
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Condition, Event, Thread, current_thread, local
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from legato_engine.backends.sharded import shared_memory
from legato_engine.backends.sharded.shared_memory import SharedMemory
from legato_engine.core.compute import ComputeThread
from legato_engine.kernels.cpu import reduction
from legato_engine.runner.ranks import first, follower, parts
from legato_engine.runner.runner import Runner
from legato_engine.scheduler.batch import StepOutput

PATIENCE = 120  # seconds of real time that a step, a load or the end of a thread may take
_PASSED = 1 << 62  # arrivals at sums: nobody waits any longer

_thread = local()  # has the `group` for which it starts ranks, or the `rank` that it is


class CoreLost(Exception):
    """The process of this core would have ended."""


class _Killed(SystemExit):
    """Ends the thread of a rank, without a report."""


@dataclass
class Fate:
    """The end or the pause of a rank after this many further messages and sums."""

    rank: int
    after: int
    stalls: bool = False


class _Status(int):
    """The exit status of a rank of `group`."""

    group: "Group"


class RankThread:
    """Replaces the process of a rank."""

    def __init__(self, group: "Group", descriptor: int, inherited: Sequence[int]) -> None:
        self._group, self.index = group, 1 + len(group.ranks)
        self._inherited = {number: os.dup(number) for number in inherited}
        self._line = _Line(self._inherited.pop(descriptor), self)
        self._killed, self.going, self._status = False, Event(), 0
        self.going.set()
        self.thread = Thread(target=self._run, name=f"follower {self.index}", daemon=True)
        group.ranks.append(self)
        self.thread.start()

    def wait(self) -> _Status:
        if current_thread().name.startswith("rank"):
            self._group.watching.append(current_thread())
        self.thread.join()
        status = _Status(-9 if self._killed else self._status)
        status.group = self._group
        return status

    def kill(self) -> None:
        self._killed = True
        with suppress(OSError), socket.socket(fileno=os.dup(self._line.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
        self.going.set()

    def stand_still(self) -> None:
        self.going.clear()
        if self._killed:  # meanwhile, by another thread
            self.going.set()
        self._group.notify()

    def reach(self) -> None:
        """Reaches a message or a sum."""
        for fate in [each for each in self._group.fates if each.rank == self.index]:
            fate.after -= 1
            if fate.after < 0:
                self._group.fates.remove(fate)
                (self.stand_still if fate.stalls else self.kill)()
        assert self.going.wait(PATIENCE), "nobody ended a rank that stands still"
        if self._killed:
            raise _Killed

    def _run(self) -> None:
        _thread.rank = self
        try:
            load = pickle.loads(self._line.recv_bytes())
            memory = self._inherited[load.memory]
            self._group.memory = mmap.mmap(memory, shared_memory.nbytes(load.rank.count))
            self._status = follower.run(self._line, replace(load, memory=memory, arena=self._inherited[load.arena]))
        except _Killed:
            pass
        except BaseException:
            traceback.print_exc()
            self._status = 1
        self._line.close()
        for number in self._inherited.values():
            os.close(number)


class _Line(Connection):
    """A rank's end of its connection."""

    def __init__(self, number: int, rank: RankThread) -> None:
        super().__init__(number)
        self._rank = rank

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        data = super().recv_bytes(maxlength)
        self._rank.reach()
        return data

    def send_bytes(self, *data: Any) -> None:
        with suppress(_Killed):  # a thread that adds an adapter ends by itself
            self._rank.reach()
            super().send_bytes(*data)


class _Memory(SharedMemory):
    def _exchange(self, piece: Any) -> Any:
        if (rank := getattr(_thread, "rank", None)) is not None:
            rank.reach()
        return super()._exchange(piece)


class Group:
    """The ranks of a worker, and the thread that computes as the first one."""

    def __init__(self, degree: int, fates: Sequence[Fate] = ()) -> None:
        self.degree, self.fates = degree, list(fates)
        self.ranks: list[RankThread] = []
        self.watching: list[Thread] = []
        self.memory: mmap.mmap | None = None
        self.runner: Runner | None = None
        self.lost = False
        self.compute: _Compute | None = _Compute(self)
        self._changed = Condition()

    def load(self, load: Callable[[], Runner]) -> None:
        """Raises CoreLost."""

        def start() -> Runner:
            _thread.group = self
            return load()

        future = self.compute._thread.submit(start)
        future.add_done_callback(lambda _: self.notify())
        self.wait(future.done)
        if not future.done():  # a rank stands still
            self.go_on()
            self.wait(future.done)
        self.runner = future.result()

    def go_on(self) -> None:
        for rank in self.ranks:
            rank.going.set()

    @property
    def is_standing(self) -> bool:
        return not all(rank.going.is_set() for rank in self.ranks)

    def notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wait(self, done: Callable[[], bool]) -> None:
        """Waits until it is done, or a rank stands still. Raises CoreLost."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.lost or self.is_standing or done(), PATIENCE), "it hangs"
        if self.lost:
            raise CoreLost

    def lose(self) -> None:
        """Ends all that its threads wait for."""
        self.lost = True
        if self.memory is not None:
            np.frombuffer(self.memory, np.int64, self.degree * reduction.LINE)[:: reduction.LINE] = _PASSED
        self.notify()

    def close(self) -> None:
        """Ends the process of the core: its ranks end, too."""
        self.lose()
        for rank in self.ranks:
            rank.kill()
            rank.thread.join(PATIENCE)
            assert not rank.thread.is_alive(), "a rank hangs"
        self.compute._thread.shutdown()
        for thread in self.watching:
            thread.join(PATIENCE)
        # A finalizer of the first rank has its processes, and would never run if they knew the first rank, also from
        # frames of a failed step.
        self.runner = self.compute = None


class _Compute(ComputeThread):
    """Steps take no virtual time, unless a rank stands still."""

    def __init__(self, group: Group) -> None:
        super().__init__()
        self._group, self.idle = group, True

    def start(self, step: Callable[[], StepOutput]) -> None:
        def compute() -> StepOutput:
            try:
                return step()
            finally:
                self.idle = True
                self._group.notify()

        self.idle = False
        super().start(compute)

    def result(self) -> StepOutput | None:
        self._group.wait(lambda: self.idle)
        return super().result()


def shared_memory_files() -> set[str]:
    """Files of arenas and of sums that this process maps, by inode and name."""
    maps = (line.split(maxsplit=4)[4] for line in Path("/proc/self/maps").read_text().splitlines())
    return {mapped for mapped in maps if "/memfd:legato-" in mapped}


def _end_too(_rank: int, status: _Status) -> None:
    status.group.lose()
    if current_thread() not in status.group.watching:
        raise SystemExit


def _popen(arguments: Sequence[str], pass_fds: Sequence[int], **_: Any) -> RankThread:
    return RankThread(_thread.group, int(arguments[-2]), pass_fds)


@contextmanager
def in_threads() -> Iterator[None]:
    """Runners that a `Group` loads have ranks in threads. All groups have to be closed before the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first, "subprocess", SimpleNamespace(Popen=_popen, DEVNULL=None))
        patch.setattr(first, "_end_too", _end_too)
        patch.setattr(parts, "SharedMemory", _Memory)
        yield
