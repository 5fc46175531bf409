"""Chats as the official client sees them."""

import json

from legato_gateway.request import Delta


async def test_text_that_is_held_back_makes_no_event_and_usage_comes_only_where_wanted(gateway):
    gateway.script(Delta(0, ""), Delta(0, "é"), Delta(0, "", finish="length"))
    response = await gateway.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *lines, done = response.text.split("\n\n")[:-1]
    events = [json.loads(line.removeprefix("data: ")) for line in lines]
    deltas = [event["choices"][0]["delta"] for event in events if "usage" not in event]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "é"}, {}]
    assert done == "data: [DONE]"


async def test_parameters_reach_the_relay_as_meant(gateway):
    penalties = {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1}
    sampling = {"temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": -1}
    lengths = {"min_tokens": 2, "max_completion_tokens": 9, "max_tokens": 5, "stop": ["a", "b", "a"]}
    asked = {"n": 2, "user": "u", "stop_token_ids": [7, 256], "cache_salt": "salt", "logprobs": True}
    asked |= {"logit_bias": {"65": 5, "66": -1.5}, "top_logprobs": 0}
    await gateway.chat(**sampling, **penalties, **lengths, **asked)
    (request,) = gateway.relay.requests
    params = request.params
    assert (request.cache_salt, request.choices, request.stop) == ("shared\0salt", 2, ("a", "b"))
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0, 0.5, 0, 0.1)
    assert (params.max_tokens, params.min_tokens, params.seed) == (9, 2, 2**64 - 1)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (1, -1, 1.1)
    assert (params.logit_bias, params.stop_token_ids) == ({65: 5, 66: -1.5}, (256, 7))


async def test_defaults_fill_the_context_draw_a_seed_and_stop_at_the_end_of_sequence(gateway):
    for fields in ({"user": "u"}, {}, {"ignore_eos": True}):
        await gateway.chat(**fields)
    first, second, third = (request.params for request in gateway.relay.requests)
    assert first.max_tokens == 1000 - len("user: hi\n")
    assert first.seed != second.seed
    assert (first.stop_token_ids, third.stop_token_ids) == ((256,), ())
    assert gateway.relay.requests[0].tenant == "address 127.0.0.1", "a client chooses its user"


async def test_developer_is_system(gateway):
    await gateway.chat(messages=[{"role": "developer", "content": "d"}, {"role": "user", "content": "ab"}])
    assert bytes(gateway.relay.requests[0].prompt) == b"system: d\nuser: ab\n"


async def test_the_header_of_priorities_goes_before_the_field(gateway):
    """In the header higher goes first; in the body lower does, as in vLLM."""
    for header, priority in (("7", 7), ("-2", -2), (None, 3)):
        await gateway.chat({"x-legato-priority": header} if header else None, priority=-3)
        assert gateway.relay.requests[-1].priority == priority
