"""All bodies together have a bound, small ones are not crowded out, and everything is given back."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.asgi import Poster

from legato_gateway.errors import Overloaded
from legato_gateway.serving.body_budget import BODIES_FULL, SMALL, BodyBudget

LIMIT = 16 * SMALL


@settings(max_examples=times(40), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["grow", "end"]), st.integers(1, 4 * SMALL))))
def test_never_more_than_the_limit_is_taken_and_all_of_it_is_given_back(steps):
    budget, bodies = BodyBudget(LIMIT), {}
    for which, what, size in steps:
        if which not in bodies:
            manager = budget.body()
            bodies[which] = (manager, manager.__enter__())
        manager, held = bodies[which]
        if what == "end":
            manager.__exit__(None, None, None)
            del bodies[which]
        else:
            with contextlib.suppress(Overloaded):
                held.grow(size)
        budget.check_integrity()
    for manager, _ in bodies.values():
        manager.__exit__(None, None, None)
    assert budget.used == 0


def test_large_bodies_leave_a_quarter_to_small_ones():
    budget = BodyBudget(LIMIT)
    with budget.body() as large, budget.body() as other, budget.body() as small:
        large.grow(LIMIT * 3 // 4)
        with pytest.raises(Overloaded) as refused:
            other.grow(SMALL + 1)
        assert (refused.value.reason, other.size) == (BODIES_FULL, 0)
        small.grow(SMALL)
    with budget.body() as alone:
        alone.grow(LIMIT * 3 // 4)


class Upload(Poster):
    """A body that stops before its end until it is told to go on."""

    def __init__(self, pieces: list[bytes]) -> None:
        super().__init__()
        self.stopped, self.go_on = asyncio.Event(), asyncio.Event()
        self._pieces = pieces

    async def receive(self) -> Any:
        if len(self._pieces) == 1:
            self.stopped.set()
            await self.go_on.wait()
        if not self._pieces:
            return await asyncio.Event().wait()
        piece = self._pieces.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}


async def test_bodies_that_do_not_fit_beside_others_are_refused_and_then_taken_again(gateway):
    body = json.dumps({"model": "tiny", "prompt": "hi"}).encode()
    padding = b" " * 400_000
    first = Upload([padding, padding, body])
    running = asyncio.create_task(first.run(gateway.app))
    await asyncio.wait_for(first.stopped.wait(), 10)

    refused = Upload([padding, padding, body])
    refused.go_on.set()
    await asyncio.wait_for(refused.run(gateway.app), 10)
    assert refused.sent[0]["status"] == 503
    headers = dict(refused.sent[0]["headers"])
    assert headers[b"x-legato-drop-reason"] == BODIES_FULL.encode()
    assert int(headers[b"retry-after"]) >= 1
    assert json.loads(refused.sent[1]["body"])["error"]["code"] == "overloaded"
    assert (await gateway.complete()).status_code == 200  # a small one

    first.go_on.set()
    await asyncio.wait_for(running, 10)
    assert first.sent[0]["status"] == 200
    assert gateway.budget.used == 0
    again = Upload([padding, padding, body])
    again.go_on.set()
    await asyncio.wait_for(again.run(gateway.app), 10)
    assert again.sent[0]["status"] == 200


async def test_a_body_counts_until_its_request_is_prepared(gateway):
    seen: list[int] = []
    gateway.tokens.before = lambda _: seen.append(gateway.budget.used)
    body = json.dumps({"model": "tiny", "prompt": "hi"})
    await gateway.http.post("/v1/completions", content=body)
    assert seen == [len(body)]
    assert gateway.budget.used == 0
