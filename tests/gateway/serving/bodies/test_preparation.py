"""Large bodies are read in processes: the same answers, no interpreter lock held, nothing left behind."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import psutil
import pytest

from legato_gateway.errors import BadRequest, InternalFault
from legato_gateway.serving.bodies import preparation
from legato_gateway.serving.bodies.preparation import CONCURRENT, LONG, NICENESS, PreparationPool
from legato_gateway.tokenizer.tokens import ModelTokenizer

SIZE = LONG + 1


@pytest.fixture(scope="module")
def tokens(model: Path) -> ModelTokenizer:
    return ModelTokenizer.load(model)


@pytest.fixture
def processes(tokens: ModelTokenizer) -> Iterator[tuple[ProcessPoolExecutor, ...]]:
    made = preparation.start_processes()
    yield made
    preparation.end_processes(made)


def body(size: int = SIZE) -> bytearray:
    return bytearray(b"x" * size)


class Prepare:
    """Runs there: only its own attributes are pickled."""

    def __init__(self, tokens: ModelTokenizer) -> None:
        self.tokens = tokens

    def __call__(self, body: bytearray) -> tuple[int, int, int, int, ModelTokenizer]:
        return len(body), os.getpid(), os.nice(0), id(self.tokens), self.tokens


def refuse(body: bytearray) -> None:
    raise BadRequest("no", param="prompt")


def fail(body: bytearray) -> None:
    raise ZeroDivisionError("a fault")


def die(body: bytearray) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_the_body_is_read_in_a_process_that_yields_and_shares_the_tokenizer(processes, tokens):
    size, pid, niceness, address, found = await PreparationPool(processes).run(Prepare(tokens), body())
    assert (size, found) == (SIZE, tokens)
    assert address == id(tokens), "it was loaded again"
    assert pid != os.getpid()
    assert niceness == min(19, os.nice(0) + NICENESS)


@pytest.mark.parametrize(("size", "more", "here"), [(LONG - 1, 0, True), (100, LONG, False)])
async def test_only_a_short_body_that_brings_little_more_to_read_stays_in_this_process(
    processes, tokens, size, more, here
):
    _, pid, *_ = await PreparationPool(processes).run(Prepare(tokens), body(size), more)
    assert (pid == os.getpid()) is here


async def test_bodies_that_start_alike_are_read_by_one_process_unless_only_another_is_free(processes, tokens):
    pool = PreparationPool(processes)
    kinds = [bytearray(start.encode() * LONG) for start in "abcdefgh"]
    first = [(await pool.run(Prepare(tokens), each))[1] for each in kinds]
    assert [(await pool.run(Prepare(tokens), each + b"more"))[1] for each in kinds] == first
    assert len(set(first)) == CONCURRENT
    same = await asyncio.gather(*(pool.run(Prepare(tokens), kinds[0]) for _ in range(CONCURRENT)))
    assert {pid for _, pid, *_ in same} == set(first)


async def test_what_is_raised_there_is_raised_here(processes):
    pool = PreparationPool(processes)
    with pytest.raises(BadRequest, match="no") as refused:
        await pool.run(refuse, body())
    assert refused.value.param == "prompt"
    with pytest.raises(ZeroDivisionError) as failed:
        await pool.run(fail, body())
    assert "test_preparation.py" in str(failed.value.__cause__)


async def test_one_that_is_killed_is_an_error_and_the_next_body_is_read_in_a_thread(processes, tokens, caplog):
    pool = PreparationPool(processes)
    with pytest.raises(InternalFault):
        await pool.run(die, body())
    assert "a thread reads its share" in caplog.text
    size, pid, *_ = await pool.run(Prepare(tokens), body())
    assert (size, pid) == (SIZE, os.getpid())


def test_processes_ignore_the_signals_that_end_the_gateway_and_end_with_it(tokens):
    before = set(psutil.Process().children())
    made = preparation.start_processes()
    forked = set(psutil.Process().children()) - before
    assert len(forked) == CONCURRENT
    for process in forked:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
    assert [each.submit(len, body()).result(90) for each in made] == [SIZE] * CONCURRENT
    preparation.end_processes(made)
    assert psutil.wait_procs(forked, 90)[1] == []


async def test_a_caller_that_stops_waiting_for_a_free_process_leaves_nothing_behind(processes, tokens):
    pool = PreparationPool(processes)
    waiting = [asyncio.create_task(pool.run(Prepare(tokens), body())) for _ in range(5 * CONCURRENT)]
    await asyncio.sleep(0)
    for task in waiting[CONCURRENT:]:
        task.cancel()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert sum(isinstance(each, asyncio.CancelledError) for each in outcomes) == len(waiting) - CONCURRENT
    assert (await pool.run(Prepare(tokens), body()))[0] == SIZE
