"""`POST /profile` of a worker's control port, in front of a scripted core."""

import asyncio
import json
from pathlib import Path

import pytest

from legato_engine.core.frames import Profiled

ASKED = b'{"steps": 5, "timeout": 2.5}'


def _ask(bench, body=ASKED, **options):
    return asyncio.create_task(bench.get("control", "/profile", "POST", body=body, **options))


async def test_the_core_records_and_the_trace_is_the_answer(bench):
    core = await bench.core()
    for content in ("first", "second"):
        asked = _ask(bench)
        order = (await core.hear()).profile
        assert (order.steps, order.timeout) == (5, 2.5)
        path = Path(order.path)
        await asyncio.to_thread(path.write_text, content)
        await core.say(Profiled())
        assert await asked == (200, content)
        assert not await asyncio.to_thread(path.parent.exists)


async def test_one_profile_at_a_time_and_only_for_the_token(bench):
    core = await bench.core()
    assert (await _ask(bench, token="wrong"))[0] == 401
    first = _ask(bench)
    await core.hear()
    status, answer = await _ask(bench)
    reason = "another profile of this worker is being recorded, for at most 2.5 s"
    assert (status, json.loads(answer)["error"]) == (409, reason)
    await core.say(Profiled("none of 5 steps were computed within 2.5 s"))
    assert await first == (504, '{"error":"none of 5 steps were computed within 2.5 s"}')


async def test_a_core_that_dies_ends_the_profile_too(bench):
    core = await bench.core()
    first = _ask(bench)
    await core.hear()
    core.die()
    status, answer = await first
    assert (status, "the worker's compute process was lost" in answer) == (504, True)
    assert (await _ask(bench))[0] == 503
    core = await bench.core()
    again = _ask(bench)
    assert (await core.hear()).profile.steps == 5
    await core.say(Profiled("no"))
    assert (await again)[0] == 504


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b'{"steps": 0}', "`int` >= 1"),
        (b'{"steps": 1000000000}', "`int` <= 1000"),
        (b'{"steps": 1.5}', "`int`"),
        (b'{"steps": 5, "timeout": 0}', "`float` > 0"),
        (b'{"steps": 5, "timeout": 1e9}', "`float` <= 600"),
        (b"{}", "required field `steps`"),
        (b"\xff", "not a valid request for a profile"),
    ],
)
async def test_an_invalid_request_is_refused_by_name(bench, body, fault):
    await bench.core()
    status, answer = await _ask(bench, body)
    assert (status, fault in json.loads(answer)["error"]) == (400, True), answer
