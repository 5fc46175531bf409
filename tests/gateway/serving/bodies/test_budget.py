"""All bodies together have a bound, small ones are not crowded out, and everything is given back."""

import asyncio
import contextlib
import json

import pytest
from budget import times
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.asgi import Sender

from legato_gateway.errors import Overloaded
from legato_gateway.serving.bodies.budget import BODIES_FULL, SMALL, BodyBudget

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
    reasons = []
    budget = BodyBudget(LIMIT, reasons.append)
    with budget.body() as large, budget.body() as other, budget.body() as small:
        large.grow(LIMIT * 3 // 4)
        with pytest.raises(Overloaded) as refused:
            other.grow(SMALL + 1)
        assert (refused.value.reason, reasons, other.size) == (BODIES_FULL, [BODIES_FULL], 0)
        small.grow(SMALL)
    with budget.body() as alone:
        alone.grow(LIMIT * 3 // 4)


async def test_bodies_that_do_not_fit_are_refused_and_later_taken(gateway):
    body = json.dumps({"model": "tiny", "prompt": "hi"}).encode()
    padding = b" " * 400_000
    first, refused, again = Sender(padding, padding, ends=False), *(Sender(padding, padding, body) for _ in range(2))
    running = asyncio.create_task(first.run(gateway.app))
    while gateway.budget.used < 2 * len(padding):  # noqa: ASYNC110 – nothing announces it
        await asyncio.sleep(0)
    await asyncio.wait_for(refused.run(gateway.app), 60)
    assert (refused.status, refused.error) == (503, "overloaded")
    assert refused.headers[b"x-legato-drop-reason"] == BODIES_FULL.encode()
    assert int(refused.headers[b"retry-after"]) >= 1
    assert (await gateway.complete()).status_code == 200  # a small one

    first.messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
    await asyncio.wait_for(running, 60)
    assert (first.status, gateway.budget.used) == (200, 0)
    await asyncio.wait_for(again.run(gateway.app), 60)
    assert again.status == 200


async def test_a_body_counts_until_its_request_is_prepared(gateway):
    seen = []
    gateway.tokens.before = lambda _: seen.append(gateway.budget.used)
    body = json.dumps({"model": "tiny", "prompt": "hi"})
    await gateway.http.post("/v1/completions", content=body)
    assert (seen, gateway.budget.used) == ([len(body)], 0)
