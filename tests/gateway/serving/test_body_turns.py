"""Large bodies take turns: few are received at a time, in order, and nobody keeps a turn without sending."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from legato_gateway.errors import Overloaded
from legato_gateway.serving import bodies
from legato_gateway.serving.body_budget import SMALL, BodyBudget
from legato_gateway.serving.body_turns import VERY_LARGE, LargeBodyTurns

PIECE = b"x" * (SMALL + 1)
PATIENCE = 10.0


class Passing:
    """The clock of the running loop, which stands still until it is set forward."""

    def __init__(self) -> None:
        self._loop, self.now = asyncio.get_running_loop(), 0.0
        self._loop.time = lambda: self.now  # type: ignore[method-assign]

    async def by(self, seconds: float) -> None:
        self.now += seconds
        await settled()


async def settled() -> None:
    """What can happen now has happened."""
    for _ in range(200):
        await asyncio.sleep(0)


class Client:
    """Sends a body of so many pieces, `pause` seconds before each but the first; the pieces that were read are told."""

    def __init__(
        self, pieces: int, read: Callable[[], None], pause: float | None = 0.0, announces: bool = False
    ) -> None:
        self._left, self._read, self._pause, self._first = pieces, read, pause, True
        self.leaves = False
        size = [(b"content-length", b"%d" % (pieces * len(PIECE)))] if announces else []
        self.request = Request({"type": "http", "method": "POST", "path": "/", "headers": size}, self.receive)

    async def receive(self) -> Any:
        if not self._first and self._pause is None:
            await asyncio.Event().wait()
        if not self._first and self._pause:
            await asyncio.sleep(self._pause)
        if self.leaves:
            return {"type": "http.disconnect"}
        self._first = False
        self._left -= 1
        self._read()
        return {"type": "http.request", "body": PIECE, "more_body": self._left > 0}


class Gateway:
    """Reads bodies, and prepares each until `prepared` is set."""

    def __init__(self, turns: LargeBodyTurns, limit: int | None = None) -> None:
        self.turns, self.budget = turns, BodyBudget(limit)
        self.prepared = asyncio.Event()
        self.read: list[str] = []  # the name of the body of each piece
        self.whole: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, pieces: int = 4, pause: float | None = 0.0, announces: bool = False) -> Client:
        client = Client(pieces, lambda: self.read.append(name), pause, announces)
        self.tasks[name] = asyncio.create_task(self._run(name, client.request))
        return client

    async def _run(self, name: str, request: Request) -> None:
        with self.budget.body() as held, self.turns.body() as turn:
            await bodies.read(request, 1 << 30, held, turn)
            self.whole.append(name)
            await self.prepared.wait()

    async def end(self) -> None:
        """All ends well, and all is given back."""
        self.prepared.set()
        await asyncio.gather(*self.tasks.values())
        self.turns.check_integrity()
        assert self.budget.used == 0


@pytest.mark.parametrize("announces", [False, True])
async def test_of_large_bodies_only_a_first_piece_is_read_until_others_are_prepared(announces):
    gateway = Gateway(LargeBodyTurns(2))
    for name in "abcde":
        gateway.start(name, announces=announces)
    await settled()
    assert gateway.whole == ["a", "b"]
    assert [gateway.read.count(name) for name in "abcde"] == [4, 4, 1, 1, 1]
    await gateway.end()
    assert gateway.whole == list("abcde")


async def test_a_small_body_waits_behind_no_large_one():
    gateway = Gateway(LargeBodyTurns(1))
    for name in "abc":
        gateway.start(name)
    await settled()
    left = [b"a"] * 100

    async def receive() -> Any:
        return {"type": "http.request", "body": left.pop(), "more_body": bool(left)}

    small = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)
    with gateway.budget.body() as held, gateway.turns.body() as turn:
        assert await asyncio.wait_for(bodies.read(small, 1 << 30, held, turn), 10) == b"a" * 100
        assert not turn.held
    await gateway.end()


async def test_a_long_prompt_waits_behind_no_very_large_body():
    gateway = Gateway(LargeBodyTurns(1, 1))
    for name in "abc":
        gateway.start(name, pieces=100, announces=True)
    await settled()
    gateway.start("prompt")
    await settled()
    assert gateway.whole == ["a", "prompt"]
    await gateway.end()


async def test_a_body_that_turns_out_to_be_very_large_waits_among_those():
    gateway = Gateway(LargeBodyTurns(1, 1))
    gateway.start("announced", pieces=100, announces=True)
    gateway.start("grows", pieces=100)
    gateway.start("prompt")
    await settled()
    assert sorted(gateway.whole) == ["announced", "prompt"]
    assert gateway.read.count("grows") < 20
    await gateway.end()


async def test_pieces_of_those_that_are_received_alternate_with_the_event_loop():
    gateway = Gateway(LargeBodyTurns(10))
    for name in "abcdefghij":
        gateway.start(name, pieces=10)
    await asyncio.sleep(0)
    for _ in range(20):
        before = len(gateway.read)
        await asyncio.sleep(0)
        assert len(gateway.read) <= before + 2
    await gateway.end()


async def test_a_client_that_sends_slowly_loses_its_turn_and_its_body_comes_whole():
    passing, gateway = Passing(), Gateway(LargeBodyTurns(1, 1, PATIENCE))
    gateway.prepared.set()
    gateway.start("slow", pieces=3, pause=PATIENCE * 1.5)
    gateway.start("other")
    await settled()
    assert gateway.whole == []
    await passing.by(PATIENCE - 0.1)
    assert gateway.whole == []
    await passing.by(0.1)
    assert gateway.whole == ["other"]
    for _ in range(4):
        await passing.by(PATIENCE)
    assert gateway.whole == ["other", "slow"]
    await gateway.end()


async def test_short_pauses_count_together():
    """Or else a byte now and then would keep a turn for ever."""
    passing, gateway = Passing(), Gateway(LargeBodyTurns(1, 1, PATIENCE))
    gateway.prepared.set()
    gateway.start("trickle", pieces=15, pause=PATIENCE / 4)
    gateway.start("other")
    for _ in range(5):
        await passing.by(PATIENCE / 4)
    assert gateway.whole == ["other"]
    assert gateway.read.count("trickle") < 10
    gateway.tasks.pop("trickle").cancel()
    await settled()
    await gateway.end()


async def test_a_turn_whose_client_was_waited_for_is_kept_while_its_body_is_prepared():
    passing, gateway = Passing(), Gateway(LargeBodyTurns(1, 1, PATIENCE))
    gateway.start("first", pieces=2, pause=PATIENCE / 2)
    gateway.start("other")
    await settled()
    await passing.by(PATIENCE / 2)
    for _ in range(4):
        await passing.by(PATIENCE)
    assert gateway.whole == ["first"]
    await gateway.end()


async def test_a_large_body_comes_whole_beside_many_that_trickle():
    passing, gateway = Passing(), Gateway(LargeBodyTurns(1, 2, PATIENCE))
    gateway.prepared.set()
    for number in range(20):
        gateway.start(f"trickle {number}", pieces=1000, pause=PATIENCE / 4, announces=True)
    await settled()
    gateway.start("other", pieces=100, announces=True)
    for _ in range(11 * 4):  # once around, in two turns
        await passing.by(PATIENCE / 4)
    assert gateway.whole == ["other"]
    del gateway.tasks["other"]
    for task in gateway.tasks.values():
        task.cancel()
    await asyncio.wait(gateway.tasks.values())
    gateway.tasks.clear()
    await gateway.end()


async def test_a_turn_passes_on_from_clients_that_left_and_from_requests_that_ended():
    gateway = Gateway(LargeBodyTurns(1))
    gateway.start("first")
    left = gateway.start("left")
    gateway.start("late")
    gateway.start("last")
    await settled()
    left.leaves = True
    late = gateway.tasks.pop("late")
    late.cancel()  # as its deadline does
    gateway.prepared.set()
    with pytest.raises(ClientDisconnect):
        await gateway.tasks.pop("left")
    await gateway.tasks["last"]
    assert gateway.whole == ["first", "last"]
    await gateway.end()


async def test_one_that_finds_no_room_gives_its_turn_back():
    gateway = Gateway(LargeBodyTurns(1), limit=8 * len(PIECE))
    gateway.start("stuck", pieces=6, pause=None)
    gateway.start("large", pieces=10)
    await settled()
    with pytest.raises(Overloaded):
        await gateway.tasks.pop("large")
    gateway.tasks.pop("stuck").cancel()
    await settled()
    await gateway.end()


async def test_a_turn_that_is_asked_for_and_not_needed_any_more_is_lost_to_nobody():
    """It is cancelled just when it is its turn."""
    gateway = Gateway(LargeBodyTurns(1))
    for name in "abc":
        gateway.start(name)
    await settled()
    gateway.tasks.pop("a").cancel()
    await asyncio.sleep(0)  # it is the turn of b, which has not been told
    gateway.tasks.pop("b").cancel()
    await settled()
    assert gateway.whole == ["a", "c"]
    await gateway.end()


async def test_bodies_of_64_kib_need_no_turn_and_those_of_a_mebibyte_none_of_the_very_large():
    turns = LargeBodyTurns(1, 1)
    assert [turns.lane(size) for size in (0, SMALL)] == [None, None]
    assert turns.lane(SMALL + 1) is turns.lane(VERY_LARGE) is not None
    assert turns.lane(VERY_LARGE + 1) is not turns.lane(VERY_LARGE)


@pytest.mark.parametrize("seed", range(30))
async def test_turns_go_round_in_order_whoever_comes_leaves_or_is_cancelled(seed):
    """Whatever happens in whatever order: never more than two have a turn, and none is free while somebody waits."""
    chance, turns = random.Random(seed), LargeBodyTurns(2, 1)
    asked: list[int] = []
    got: list[int] = []
    over: dict[int, asyncio.Event] = {}
    running: dict[int, asyncio.Task[None]] = {}

    async def body(number: int) -> None:
        with turns.body() as turn:
            asked.append(number)
            await turn.take(len(PIECE))
            got.append(number)
            await over[number].wait()

    for number in range(60):
        over[number] = asyncio.Event()
        running[number] = asyncio.create_task(body(number))
        for _ in range(chance.randrange(3)):
            each = chance.choice(list(running) or [number])
            if chance.random() < 0.5:
                over[each].set()
            elif each in running:
                running.pop(each).cancel()
            turns.check_integrity()
            await asyncio.sleep(0)
        turns.check_integrity()
    for event in over.values():
        event.set()
    await asyncio.wait_for(asyncio.gather(*running.values(), return_exceptions=True), 10)
    turns.check_integrity()
    assert got == [number for number in asked if number in got], "first come, first served"
    assert set(running) <= set(got)
