"""A client that leaves while its large body is prepared is not worked for any longer."""

import asyncio
import json
import threading

import pytest
from starlette.requests import ClientDisconnect
from tests.support.asgi import Sender

from legato_gateway.access_log import CLIENT_LEFT
from legato_gateway.serving.bodies.budget import SMALL
from legato_gateway.serving.disconnect import unless_left


async def answer():
    await asyncio.sleep(0)
    return "answer"


async def fault():
    raise ZeroDivisionError


async def test_what_work_returns_and_raises_for_a_client_that_stays():
    stays = asyncio.Event().wait
    assert await asyncio.wait_for(unless_left(stays, answer()), 60) == "answer"
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(unless_left(stays, fault()), 60)


async def test_work_that_ends_as_its_client_leaves_was_done():
    async def leaves():
        await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    assert await unless_left(leaves, answer()) == "answer"


@pytest.mark.parametrize("leaves", [True, False])
async def test_work_has_ended_when_its_client_left_or_nobody_waits_for_it(leaves):
    client, begun, ended = Sender(b""), asyncio.Event(), False  # the end of its body may still be there

    async def work():
        nonlocal ended
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):  # longer than the waiting task takes to notice
                await asyncio.sleep(0)
            ended = True

    task = asyncio.create_task(unless_left(client.receive, work()))
    await asyncio.wait_for(begun.wait(), 60)
    if leaves:
        client.leave()
    else:
        task.cancel()
    with pytest.raises(ClientDisconnect if leaves else asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert ended


async def test_a_request_ends_whose_client_leaves_while_its_body_is_tokenized(gateway):
    loop, tokenizing, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def block(_):
        loop.call_soon_threadsafe(tokenizing.set)
        go_on.wait(90)

    gateway.tokens.before = block
    client = Sender(json.dumps({"model": "tiny", "prompt": "hi" + " " * 10, "user": "x"}).encode() + b" " * SMALL)
    task = asyncio.create_task(client.run(gateway.app))
    try:
        await asyncio.wait_for(tokenizing.wait(), 60)
        client.leave()
        await asyncio.wait_for(task, 60)
    finally:
        go_on.set()
    assert [entry.status for entry in gateway.entries] == [CLIENT_LEFT]
    assert (gateway.budget.used, gateway.relay.requests) == (0, [])
