"""Ranks as threads of this process, for models that exist only in memory."""

import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from threading import Thread
from typing import Any

import numba
import torch

from legato_engine.backends.cuda.device import Device
from legato_engine.runner.ranks.follower import Follower
from legato_engine.runner.ranks.messages import Loaded, LoadPart, LoadProgress
from legato_engine.weights.checkpoint import Checkpoint

Gpu = Callable[[], Device | None]


class RankThreads:
    """Replaces `first.OtherRanks`: all ranks load `checkpoint`."""

    def __init__(self, loads: Sequence[LoadPart], checkpoint: Checkpoint, gpu: Gpu = lambda: None) -> None:
        self._sent = [SimpleQueue[bytes]() for _ in loads]
        self._answers = SimpleQueue[Any]()
        for load, sent in zip(loads, self._sent, strict=True):
            arena = None if load.arena is None else os.dup(load.arena)
            own = replace(load, arena=arena, memory=os.dup(load.memory))
            Thread(target=_follow, args=(own, checkpoint, gpu, sent, self._answers), daemon=True).start()
        weakref.finalize(self, _end, self._sent)

    def wait_loaded(self, beat: Callable[[], None]) -> list[Loaded]:
        return self._take()

    def watch(self) -> None:
        """Threads end with the process."""

    def send(self, message: Any) -> None:
        for sent in self._sent:
            sent.put(pickle.dumps(message))

    def wait_answers(self) -> None:
        self._take()

    def _take(self) -> list[Any]:
        answers = [self._answers.get(timeout=60) for _ in self._sent]
        if failed := [answer for answer in answers if isinstance(answer, Exception)]:
            raise failed[0]
        return answers


def _follow(
    load: LoadPart,
    checkpoint: Checkpoint,
    gpu: Gpu,
    sent: "SimpleQueue[bytes]",
    answers: "SimpleQueue[Any]",
) -> None:
    def answer(message: Any) -> None:
        if not isinstance(message, LoadProgress):
            answers.put(message)

    numba.set_num_threads(load.threads or 1)
    with torch.inference_mode():
        try:
            follower = Follower(load, checkpoint, answer, gpu())
        except Exception as error:
            answers.put(error)
            return
        finally:
            for descriptor in (load.arena, load.memory):
                if descriptor is not None:
                    os.close(descriptor)
        answers.put(follower.loaded)
        while (message := sent.get()) != b"":
            follower.handle(pickle.loads(message))


def _end(sent: "Sequence[SimpleQueue[bytes]]") -> None:
    for each in sent:
        each.put(b"")
