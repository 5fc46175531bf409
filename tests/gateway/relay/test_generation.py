"""One request under way, between the relay that feeds it and the client that reads it."""

import asyncio
from unittest.mock import Mock

import pytest

from legato_gateway.errors import GatewayError, SlowClient
from legato_gateway.relay.generation import RunningGeneration
from legato_protocol.sampling.reasoning import ReasoningTokens
from legato_protocol.wire.stream import TokenItem


def _generation(lab, buffer_tokens=8, **overrides):
    owner = Mock()
    return RunningGeneration(lab.request(**overrides), lab.vocabulary, owner, buffer_tokens), owner


def _feed(generation, *tokens, choice=0, finish=None, cached=0):
    one = generation.choices[choice]
    item = TokenItem("r", 1, choice, len(one.tokens), tokens, finish=finish, cached_tokens=cached)
    generation.take(one, item)


async def _reading(generation):
    reading = asyncio.ensure_future(anext(generation))
    await asyncio.sleep(0)
    assert not reading.done()
    return reading


async def test_a_reader_waits_for_what_comes_and_gets_the_error_after_it(lab):
    generation, _ = _generation(lab)
    reading = await _reading(generation)
    _feed(generation, 1)
    _feed(generation, 2)
    assert (await reading).text == "ab"
    generation.end(SlowClient("left"))
    assert (await anext(generation)).text == "ac"
    for _ in range(2):
        with pytest.raises(SlowClient):
            await anext(generation)


async def test_the_end_wakes_the_reader(lab):
    generation, _ = _generation(lab)
    reading = await _reading(generation)
    generation.end()
    generation.end()
    with pytest.raises(StopAsyncIteration):
        await reading


async def test_a_reader_that_stopped_waiting_is_not_woken(lab):
    generation, _ = _generation(lab)
    reading = await _reading(generation)
    reading.cancel()
    _feed(generation, 1)
    await asyncio.gather(reading, return_exceptions=True)
    assert [delta.text for delta in generation.ready()] == ["ab"]
    assert generation.ready() == []


def test_a_client_that_reads_too_slowly_is_paused_until_half_is_read(lab):
    generation, owner = _generation(lab, buffer_tokens=8)

    def state():
        return generation.unread, generation.paused, [call.args[1] for call in owner.pause.call_args_list]

    for token in range(7):
        _feed(generation, token)
    assert state() == (7, False, [])
    _feed(generation, 7, 8)
    _feed(generation, 9)
    assert state() == (10, True, [True])
    for _ in range(5):
        asyncio.run(anext(generation))
    assert state() == (5, True, [True])
    asyncio.run(anext(generation))
    assert state() == (4, False, [True, False])
    for token in range(4):
        _feed(generation, token)
    assert state() == (8, True, [True, False, True])
    generation.end()
    generation.ready()
    assert state() == (0, False, [True, False, True]), "nothing is left to go on"


def test_its_owner_is_notified_that_the_client_left(lab):
    generation, owner = _generation(lab)
    asyncio.run(generation.cancel())
    owner.leave.assert_called_once_with(generation)


@pytest.mark.parametrize(
    ("reasoning", "counted"), [(None, None), (ReasoningTokens(open=1, close=2, open_in_prompt=True), 3)]
)
def test_usage_counts_all_choices_and_the_largest_cached_prefix(lab, reasoning, counted):
    generation, _ = _generation(lab, choices=2, reasoning=reasoning)
    assert generation.unfinished == 2
    assert generation.route.prompt_tokens == 100
    _feed(generation, 7, 7, 2, 7, cached=64)
    _feed(generation, 7, choice=1, cached=32, finish="length")
    usage = generation.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (100, 5, 64)
    assert (usage.reasoning_tokens, generation.unfinished) == (counted, 1)


@pytest.mark.parametrize(
    ("error", "finish"), [(None, "length,cancelled"), (SlowClient("left"), "slow_client"), (GatewayError("?"), "error")]
)
def test_the_route_records_how_it_ended(lab, error, finish):
    generation, _ = _generation(lab, choices=2)
    _feed(generation, 1, 2, finish="length")
    generation.end(error)
    assert (generation.route.output_tokens, generation.route.finish) == (2, finish)
