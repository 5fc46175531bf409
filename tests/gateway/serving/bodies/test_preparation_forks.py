"""Large bodies are read in processes: the same answers, no interpreter lock held, nothing left behind."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from legato_gateway.errors import BadRequest, InternalFault
from legato_gateway.serving.bodies.preparation import LONG, PreparationPool
from legato_gateway.serving.bodies.preparation_forks import NICENESS, PreparationForks, _die_when_closed
from legato_gateway.tokenizer.tokens import ModelTokenizer

SIZE = LONG + 1


@pytest.fixture(scope="module")
def tokens(model: Path) -> ModelTokenizer:
    return ModelTokenizer.load(model)


@pytest.fixture(scope="module")
def forks(tokens: ModelTokenizer) -> Iterator[PreparationForks]:
    made = PreparationForks(tokens)
    yield made
    made.close()


async def until_running(forks: PreparationForks, processes: int) -> None:
    """Returns once this number of processes read a body."""
    async with asyncio.timeout(20):
        while len(psutil.Process(forks.pid).children()) != processes:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.01)


def body(size: int = SIZE) -> bytearray:
    return bytearray(b"x" * size)


class Prepare:
    """Runs there: only its own attributes are pickled."""

    def __init__(self, tokens: ModelTokenizer) -> None:
        self.tokens = tokens

    def __call__(self, body: bytearray) -> tuple[int, int, int, ModelTokenizer]:
        return len(body), os.getpid(), os.nice(0), self.tokens


def refuse(body: bytearray) -> None:
    raise BadRequest("no", param="prompt")


def fail(body: bytearray) -> None:
    raise ZeroDivisionError("a fault")


def die(body: bytearray) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work_forever(body: bytearray) -> None:
    while True:
        time.sleep(1)


async def test_the_body_is_read_in_a_process_that_yields_and_has_the_same_tokenizer(forks, tokens):
    size, pid, niceness, found = await PreparationPool(forks).run(Prepare(tokens), body())
    assert (size, found) == (SIZE, tokens)
    assert pid not in (os.getpid(), forks.pid)
    assert niceness == min(19, os.nice(0) + NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, forks.pid) == niceness, "forking comes before the gateway's own work"
    await until_running(forks, 0)


@pytest.mark.parametrize(("size", "more", "here"), [(LONG - 1, 0, True), (100, LONG, False)])
async def test_only_a_short_body_that_brings_little_more_to_read_stays_in_this_process(forks, tokens, size, more, here):
    _, pid, _, _ = await PreparationPool(forks).run(Prepare(tokens), body(size), more)
    assert (pid == os.getpid()) is here
    assert pid != forks.pid


async def test_what_is_raised_there_is_raised_here(forks):
    with pytest.raises(BadRequest, match="no") as refused:
        await forks.run(refuse, body())
    assert refused.value.param == "prompt"
    with pytest.raises(ZeroDivisionError) as failed:
        await forks.run(fail, body())
    assert "test_preparation_forks.py" in failed.value.__notes__[0]


async def test_one_that_is_killed_is_an_error_and_the_next_body_is_read(forks, tokens):
    with pytest.raises(InternalFault):
        await forks.run(die, body())
    assert (await forks.run(Prepare(tokens), body()))[0] == SIZE


async def test_a_caller_that_stops_waiting_ends_the_work(forks):
    await until_running(forks, 0)
    task = asyncio.create_task(PreparationPool(forks).run(work_forever, body()))
    await until_running(forks, 1)
    task.cancel()
    await until_running(forks, 0)
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_process_ends_whose_client_left_before_the_kernel_watched_it():
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        with pytest.raises(SystemExit):
            _die_when_closed(theirs, True)
        _die_when_closed(theirs, False)


async def test_without_the_process_that_forks_bodies_are_read_in_threads(tokens, caplog):
    ended = PreparationForks(tokens)
    os.kill(ended.pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitid, os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    _, pid, _, _ = await PreparationPool(ended).run(Prepare(tokens), body())
    assert pid == os.getpid()
    assert "read in a thread" in caplog.text
    ended.close()
