"""One prefill and two decode workers: one hangs, dies or is drained, and its reader does not notice."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

HANGS = [("prefill", "pushing"), ("decode", "decoding")]
GIVEN_UP = ("hung", "connecting")  # the first for less than three seconds
STORIES = ("The first story begins", "Another story begins")
CHOICES = {"max_tokens": 500, "n": 3, "seed": 11, "temperature": 0.8, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def second_decode_worker(shared: Any) -> Iterator[None]:
    shared.get().scale("decode", 2)
    yield
    shared.get().scale("decode", 1)


@pytest.fixture
def trio(service: Any) -> Any:
    """One prefill worker and two decode workers, also where the service is a new one."""
    service.scale("decode", 2)
    return service


@pytest.mark.parametrize(("role", "stage"), HANGS)
def test_a_worker_that_hangs_and_wakes_up_late_disturbs_no_stream(
    trio: Any, undisturbed: list[Any], stopped: Callable[..., Any], role: str, stage: str
) -> None:
    """It wakes up while others compute what it had, and would go on with it."""
    round = stopped(role, stage)
    trio.until(lambda: trio.worker(round.victim).get("connection") in GIVEN_UP, "the gateway has given it up")
    if (role, stage) == ("prefill", "pushing"):
        trio.until(lambda: round.receiver_gave_up, "blocks it may still write to are kept away")
    round.signal(signal.SIGCONT)
    round.finish(undisturbed)
    trio.until_connected(round.victim)
    trio.until_idle()
    epochs = {worker["worker"]: worker["epoch"] for worker in trio.workers()}
    assert epochs == round.epochs, "a worker was replaced"


def test_draining_moves_every_choice(trio: Any) -> None:
    """The manifest is edited, 2 → 1 under load: sequences move by hand-off, none fails, none is recomputed.

    Again where one has ended before its worker drained.
    """
    calm = [trio.stream(prompt, **CHOICES) for prompt in STORIES]
    assert all(stream.result() for stream in calm)
    assert any(_every_choice_moved(trio, calm) for _ in range(10)), "each time, some choices stayed until their end"


def _every_choice_moved(trio: Any, calm: list[Any]) -> bool:
    trio.scale("decode", 2)
    trio.until_idle()

    def run(*counts: int) -> Callable[[], bool]:
        """True if decode workers run that many sequences, or a stream has ended already."""
        return lambda: sorted(w["running"] for w in trio.workers("decode")) == [*counts] or first.done.is_set()

    first = trio.stream(STORIES[0], **CHOICES)
    trio.until(run(0, 3), "three sequences run", 0.01)
    second = trio.stream(STORIES[1], **CHOICES)  # which goes to the worker without any
    trio.until(run(3, 3), "six sequences run", 0.01)
    trio.edit(("decode: {min: 1, max: 4}", "decode: {min: 1, max: 1}"))
    for stream, expected in zip((first, second), calm, strict=True):
        assert stream.result()
        assert stream.texts == expected.texts
    trio.until(lambda: len(trio.workers("decode")) == 1, "the drained worker is gone")
    scaled = trio.command("scale", "decode", "1")  # or the second would be back once there may be four again
    assert scaled.returncode == 0, scaled.stderr
    trio.edit(("decode: {min: 1, max: 1}", "decode: {min: 1, max: 4}"))
    trio.until_idle()
    moves = {
        stream.id: sum("decode" in handoff["source"] for handoff in trio.record(stream.id)["handoffs"])
        for stream in (first, second)
    }
    assert {id: trio.record(id)["attempt"] for id in moves} == {id: 1 + bool(count) for id, count in moves.items()}
    return sorted(moves.values()) == [0, 3]
