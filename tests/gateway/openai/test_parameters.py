"""Every parameter of a request at its extremes: taken, or refused with an error that names it and what is allowed."""

import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from legato_gateway.generation_config import GenerationDefaults
from legato_protocol.sampling.limits import RANGES
from legato_protocol.sampling.parameters import SamplingParams, later_params

LARGEST = (1 << 31) - 1
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}


class Numeric(NamedTuple):
    """A parameter that is a number, and the least and the most that are allowed."""

    name: str
    least: float
    most: float
    body: dict[str, Any] = CHAT
    also: Mapping[str, Any] = MappingProxyType({})  # what else a request needs for it to be taken

    @property
    def outside(self) -> list[str]:
        """The numbers just below and just above, in JSON."""
        if isinstance(self.least, int):
            return [str(self.least - 1), str(self.most + 1)]
        return [json.dumps(math.nextafter(self.least, -math.inf)), json.dumps(math.nextafter(self.most, math.inf))]


NUMERIC = [
    Numeric("temperature", 0.0, 2.0),
    Numeric("top_p", 0.0, 1.0),
    Numeric("min_p", 0.0, 1.0),
    Numeric("presence_penalty", -2.0, 2.0),
    Numeric("frequency_penalty", -2.0, 2.0),
    Numeric("repetition_penalty", 0.01, 100.0),
    Numeric("seed", -(1 << 63), (1 << 64) - 1),
    Numeric("top_k", -1, LARGEST),
    Numeric("n", 1, 128),
    Numeric("priority", -1000, 1000),
    Numeric("top_logprobs", 0, 20, also={"logprobs": True}),
    Numeric("logprobs", 0, 20, COMPLETION),
    Numeric("best_of", 1, 128, COMPLETION),
    Numeric("max_tokens", 1, LARGEST),
    Numeric("max_completion_tokens", 1, LARGEST),
    Numeric("min_tokens", 0, LARGEST),
]
BEYOND_CONTEXT = {"max_tokens", "max_completion_tokens", "min_tokens"}  # their largest fits in no model's context


async def send(gateway: Any, parameter: Numeric, value: str) -> Any:
    """A request with that JSON as the parameter's value."""
    fields = json.dumps({"model": "tiny", **parameter.body, **parameter.also})
    path = "chat/completions" if parameter.body is CHAT else "completions"
    body = f'{fields[:-1]}, "{parameter.name}": {value}}}'
    return await gateway.http.post(f"/v1/{path}", content=body.encode())


def refused(gateway: Any, answer: Any, parameter: Numeric) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == parameter.name
    assert f"{parameter.least} to {parameter.most}" in error["message"]
    assert gateway.relay.generations == []


each_numeric = pytest.mark.parametrize("parameter", NUMERIC, ids=lambda parameter: parameter.name)


@each_numeric
@pytest.mark.parametrize("end", ["least", "most"])
async def test_the_ends_of_a_range_are_allowed(gateway, parameter, end):
    value = getattr(parameter, end)
    if parameter.name == "best_of":
        parameter = parameter._replace(also={"n": value})
    answer = await send(gateway, parameter, json.dumps(value))
    if parameter.name in BEYOND_CONTEXT and end == "most":
        assert answer.status_code == 400
        assert str(value) in answer.json()["error"]["message"]
        return
    assert answer.status_code == 200, answer.text
    params = gateway.relay.requests[0].params
    outside = {name for name, limits in RANGES.items() if not limits.allows(getattr(params, name))}
    assert not outside, "a worker takes these"


NO_NUMBERS = ["true", "false", '"1"', "[1]", "{}", "1e400", "-1e400", "9" * 5000]
FRACTIONS = ["1.5", "1e0"]
NO_JSON = ["NaN", "Infinity", "-Infinity", "01", "+1", ".5", "0x1"]
MAKE_INFINITE = ["1e-300", "5e-324", "1e-40", "0.009999"]  # logits, as a repetition penalty


@each_numeric
async def test_beyond_them_and_what_is_no_such_number_is_refused(gateway, parameter):
    wrong = [*parameter.outside, *NO_NUMBERS]
    wrong += FRACTIONS if isinstance(parameter.least, int) else []
    wrong += MAKE_INFINITE if parameter.name == "repetition_penalty" else []
    for value in wrong:
        refused(gateway, await send(gateway, parameter, value), parameter)
    for value in NO_JSON:
        answer = await send(gateway, parameter, value)
        assert answer.status_code == 400
        assert "not JSON" in answer.json()["error"]["message"]
    assert gateway.relay.generations == []
    assert (await send(gateway, parameter, "null")).status_code == 200, "the default"


WRONG_IDS: list[Any] = [[], [-1], [257], [1] * 1025, ["1"], [1.5], [True], 1, {}]
WRONG_WORDS: list[Any] = [[""], [" "], ["x" * 65], ["x" * 257], ["x"] * 129, "x", [1], {}]
WRONG_BIASES: list[Any] = [
    *({id: 0} for id in ("257", "-1", "", "1.0", "²", "9" * 30)),
    *({"1": bias} for bias in (100.1, -101, "1", True, None)),
    *({f"{id:05}": 0 for id in range(1025)}, [], 1),
]
FLAGS = ("echo", "add_generation_prompt", "continue_final_message", "add_special_tokens", "include_stop_str_in_output")
FLAGS += ("skip_special_tokens", "return_token_ids", "return_tokens_as_token_ids", "ignore_eos", "logprobs", "stream")
OTHERS: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("stop", CHAT, ["x", ["x"], [], ["x"] * 16, "x" * 1024], ["", [""], ["x"] * 17, "x" * 1025, 1, True, {}, [1]]),
    ("stop_token_ids", CHAT, [[], [0], [256], [1] * 16], [[-1], [257], [1 << 31], [1] * 17, ["1"], [True], 1, "1", {}]),
    ("logit_bias", CHAT, [{}, {"0": -100}, {"256": 100.0}, {str(id): 0 for id in range(257)}], WRONG_BIASES),
    ("allowed_token_ids", CHAT, [[0], [256], [1] * 1024, None], WRONG_IDS),
    ("bad_words", CHAT, [[], ["x"], ["x" * 64], ["x"] * 128, None], WRONG_WORDS),
    ("user", CHAT, ["", "é" * 512], ["x" * 513, 1, True, []]),
    ("cache_salt", CHAT, ["x", "x" * 512], ["", "x" * 513, 1]),
    ("echo", COMPLETION, [True, False], [1, "true"]),
    *((name, CHAT, [True, False], [1, 0, "true"]) for name in FLAGS),
    ("stream_options", CHAT, [], [{"include_usage": 1}, [], "x", True]),
    ("truncate_prompt_tokens", CHAT, [-1, 1, 999, None], [-2, 0, 1000, 1 << 31, 1.5, "1", True]),
    ("truncate_prompt_tokens", COMPLETION, [-1, 1, 984, None], [-2, 0, 985, 1 << 31, 1.5, "1", True]),
    ("model", CHAT, ["tiny", None], [1, True, ["tiny"], {}]),
]


@pytest.mark.parametrize(("name", "body", "allowed", "wrong"), OTHERS, ids=lambda value: str(value)[:30])
async def test_other_parameters_are_taken_or_refused_by_name(gateway, name, body, allowed, wrong):
    path = "/v1/chat/completions" if body is CHAT else "/v1/completions"
    for value in wrong:
        answer = await gateway.http.post(path, json={"model": "tiny", **body, name: value})
        assert answer.status_code == 400, value
        assert answer.json()["error"]["param"] == name
        assert len(answer.content) < 400
    assert gateway.relay.generations == []
    for value in allowed:
        answer = await gateway.http.post(path, json={"model": "tiny", **body, name: value})
        assert answer.status_code == 200, answer.text


async def test_what_is_wrong_is_told_with_what_is_allowed(gateway):
    async def told(**fields: Any) -> str:
        return str((await gateway.chat(**fields)).json()["error"]["message"])

    assert await told(temperature=3) == "not a valid temperature: 3 (a number from 0.0 to 2.0)"
    assert await told(n=True) == "not a valid n: true (a whole number from 1 to 128)"
    assert await told(stream=1) == "not a valid stream: 1 (true or false)"
    assert await told(user="x" * 600) == f'not a valid user: "{"x" * 39}… (text of 0 to 512 characters)'
    assert await told(logit_bias={"999": 1}) == "not valid token ids in logit_bias: '999' (0 to 256)"
    assert await told(stop=["x" * 300_000]) == "stop has 300004 bytes of JSON; at most 262144 are allowed"


async def test_the_longest_stop_strings_fit_however_they_are_escaped(gateway):
    stops = ["🎼" * 1023 + chr(0x1F3B5 + number) for number in range(16)]
    assert (await gateway.chat(stop=stops)).status_code == 200
    assert gateway.relay.requests[0].stop == tuple(stops)


HEADERS = {  # allowed values, and wrong ones
    "x-legato-deadline": (["60000ms", "604800", "168h"], ["", "soon", "0", "604801", "169h", "-1", "nan", "1 s", "2d"]),
    "x-legato-priority": (["-1000", "+1000", "0"], ["", "high", "-1001", "1001", "1.0", "nan", "²".encode()]),
    "x-legato-tenant": (["t" * 512, ""], ["t" * 513]),
}


@pytest.mark.parametrize("name", HEADERS)
async def test_headers_at_their_extremes(gateway, name):
    allowed, wrong = HEADERS[name]
    for value in wrong:
        answer = await gateway.chat({name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), value
    assert gateway.relay.generations == []
    for value in allowed:
        assert (await gateway.chat({name: value})).status_code == 200, value


DEFAULTS = GenerationDefaults(0.7, 0.8, 20, 0.05, 1.05, 50)
NEUTRAL = {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
SAMPLING = [  # the makers' values, a request's fields, and what counts
    (DEFAULTS, dict.fromkeys(NEUTRAL), (0.7, 0.8, 20, 0.05, 1.05)),
    (DEFAULTS, NEUTRAL, (0, 1, 0, 0, 1)),
    (DEFAULTS, {"top_k": 0}, (0.7, 0.8, 0, 0.05, 1.05)),
    (GenerationDefaults(), {}, (1, 1, 0, 0, 1)),
]


@pytest.mark.parametrize(("defaults", "fields", "expected"), SAMPLING)
async def test_null_leaves_the_makers_value_and_a_neutral_value_does_not(make, defaults, fields, expected):
    gateway = make(defaults=defaults)
    await gateway.chat(**fields)
    params = gateway.relay.requests[0].params
    assert tuple(getattr(params, field) for field in NEUTRAL) == expected


async def test_chats_end_at_the_makers_length_and_completions_at_openais(make):
    gateway = make(defaults=DEFAULTS)
    for fields, length in (({}, 50), ({"max_tokens": None}, 50), ({"max_tokens": 70}, 70)):
        await gateway.chat(**fields)
        assert gateway.relay.requests[-1].params.max_tokens == length
    await gateway.complete()
    assert gateway.relay.requests[-1].params.max_tokens == 16
    gateway = make(defaults=GenerationDefaults(max_tokens=100_000))
    assert (await gateway.chat()).status_code == 200
    (request,) = gateway.relay.requests
    assert request.params.max_tokens == 1000 - len(request.prompt)


END = 256
ONE_OF = {"structured_outputs": {"choice": ["a", "b"]}}


async def asked(gateway: Any, **fields: Any) -> SamplingParams:
    answer = await gateway.chat(**fields)
    assert answer.status_code == 200, answer.text
    return gateway.relay.requests[-1].params


async def test_they_reach_workers_as_tokens_and_without_them_any_worker_will_do(gateway):
    fields = {"allowed_token_ids": [65, 66, 65, END], "bad_words": ["ab", " a", "ab"]}
    params = await asked(gateway, **fields)
    assert (params.allowed_token_ids, params.bad_words) == ((65, 66, END), ((97, 98), (97,)))
    assert later_params(params) == ("allowed_token_ids", "bad_words")
    await gateway.complete(**fields)
    completed = gateway.relay.requests[-1].params
    assert (completed.allowed_token_ids, completed.bad_words) == (params.allowed_token_ids, params.bad_words)
    for fields in ({"bad_words": []}, {"allowed_token_ids": None, "bad_words": None}):
        assert later_params(await asked(gateway, **fields)) == ()


async def test_a_word_is_forbidden_after_a_space_where_that_is_other_tokens(gateway, monkeypatch):
    """As in most vocabularies: the space belongs to the word's first token."""
    tokens = {"Paris": [80, 81], " Paris": [82], "é": [83, 84], " é": [32, 83, 84]}
    monkeypatch.setattr(gateway.tokens, "encode", lambda text, *_: tokens.get(text, [1]))
    params = await asked(gateway, bad_words=["  Paris", "é"])
    assert params.bad_words == ((80, 81), (82,), (83, 84))


NONE_LEFT = "allowed_token_ids: no token is left that an answer could begin with"
NO_END = "allowed_token_ids has none of the tokens that end an answer, [256]: no answer could end"
CONTRADICT: list[tuple[dict[str, Any], str]] = [
    ({"allowed_token_ids": [3, 257]}, "not a valid token id in allowed_token_ids: 257 (0 to 256)"),
    ({"bad_words": ["x", "  "]}, "not a valid word in bad_words: '  ' (it has no tokens)"),
    ({"bad_words": ["x" * 65]}, f"not a valid word in bad_words: '{'x' * 40}' has 65 tokens (1 to 64)"),
    ({"allowed_token_ids": [97], "bad_words": ["a"]}, NONE_LEFT),
    ({"allowed_token_ids": [END], "min_tokens": 1}, NONE_LEFT),
    ({"allowed_token_ids": [97, 98], **ONE_OF}, NO_END),
]


async def test_what_leaves_nothing_to_say_is_refused(gateway):
    for fields, text in CONTRADICT:
        error = (await gateway.chat(**fields)).json()["error"]
        assert (error["param"], error["message"]) == (next(iter(fields)), text)
    assert gateway.relay.generations == []
