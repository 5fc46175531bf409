"""Every parameter of a request at its extremes: taken, or refused with an error that names it and what is allowed."""

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

from legato_protocol.sampling_limits import RANGES
from legato_protocol.sampling_params import SamplingParams

LARGEST = (1 << 31) - 1
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}


@dataclass(frozen=True)
class Numeric:
    """A parameter that is a number, and the least and the most that are allowed."""

    name: str
    least: float
    most: float
    below: float
    above: float
    body: dict[str, Any]
    also: dict[str, Any]  # what else a request needs for it to be taken


def numeric(name: str, least: float, most: float, body: dict[str, Any] = CHAT, **also: Any) -> Numeric:
    if isinstance(least, int):
        return Numeric(name, least, most, least - 1, most + 1, body, also)
    return Numeric(name, least, most, math.nextafter(least, -math.inf), math.nextafter(most, math.inf), body, also)


NUMERIC = [
    numeric("temperature", 0.0, 2.0),
    numeric("top_p", 0.0, 1.0),
    numeric("min_p", 0.0, 1.0),
    numeric("presence_penalty", -2.0, 2.0),
    numeric("frequency_penalty", -2.0, 2.0),
    numeric("repetition_penalty", 0.01, 100.0),
    numeric("seed", -(1 << 63), (1 << 64) - 1),
    numeric("top_k", -1, LARGEST),
    numeric("n", 1, 128),
    numeric("priority", -1000, 1000),
    numeric("top_logprobs", 0, 20, logprobs=True),
    numeric("logprobs", 0, 20, COMPLETION),
    numeric("best_of", 1, 128, COMPLETION),
    numeric("max_tokens", 1, LARGEST),
    numeric("max_completion_tokens", 1, LARGEST),
    numeric("min_tokens", 0, LARGEST),
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
        parameter = Numeric(**{**vars(parameter), "also": {"n": value}})
    answer = await send(gateway, parameter, json.dumps(value))
    if parameter.name in BEYOND_CONTEXT and end == "most":
        assert answer.status_code == 400
        assert str(value) in answer.json()["error"]["message"]
        return
    assert answer.status_code == 200, answer.text
    (request,) = gateway.relay.requests
    _check_sendable(request.params)


def _check_sendable(params: SamplingParams) -> None:
    """A worker takes these."""
    outside = {name for name, limits in RANGES.items() if not limits.allows(getattr(params, name))}
    assert not outside


NO_NUMBERS = ["true", "false", '"1"', "[1]", "{}", "1e400", "-1e400", "9" * 5000]
FRACTIONS = ["1.5", "1e0"]
NO_JSON = ["NaN", "Infinity", "-Infinity", "01", "+1", ".5", "0x1"]
MAKE_INFINITE = ["1e-300", "5e-324", "1e-40", "0.009999"]  # logits, as a repetition penalty


@each_numeric
async def test_beyond_them_and_what_is_no_such_number_is_refused(gateway, parameter):
    wrong = [json.dumps(parameter.below), json.dumps(parameter.above), *NO_NUMBERS]
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
FLAGS += ("skip_special_tokens", "return_token_ids", "return_tokens_as_token_ids", "ignore_eos", "logprobs")
OTHERS: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("stop", CHAT, ["x", ["x"], [], ["x"] * 16, "x" * 1024], ["", [""], ["x"] * 17, "x" * 1025, 1, True, {}, [1]]),
    ("stop_token_ids", CHAT, [[], [0], [256], [1] * 16], [[-1], [257], [1 << 31], [1] * 17, ["1"], [True], 1, "1", {}]),
    ("logit_bias", CHAT, [{}, {"0": -100}, {"256": 100.0}, {str(id): 0 for id in range(257)}], WRONG_BIASES),
    ("allowed_token_ids", CHAT, [[0], [256], [1] * 1024, None], WRONG_IDS),
    ("bad_words", CHAT, [[], ["x"], ["x" * 64], ["x"] * 128, None], WRONG_WORDS),
    ("user", CHAT, ["", "é" * 512], ["x" * 513, 1, True, []]),
    ("cache_salt", CHAT, ["x", "x" * 512], ["", "x" * 513, 1]),
    ("stream", CHAT, [True, False], [1, 0, "true", [], {}]),
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
    body = json.dumps({"model": "tiny", **CHAT, "stop": stops})
    assert (await gateway.http.post("/v1/chat/completions", content=body)).status_code == 200
    assert gateway.relay.requests[0].stop == tuple(stops)


HEADERS = [
    (
        "x-legato-deadline",
        ["60000ms", "604800", "168h"],
        ["", "soon", "0", "604801", "169h", "-1", "nan", "inf", "1e3", "1 s", "2d"],
    ),
    ("x-legato-priority", ["-1000", "+1000", "0"], ["", "high", "-1001", "1001", "1.0", "true", "nan", "²".encode()]),
    ("x-legato-tenant", ["t" * 512, ""], ["t" * 513]),
]


@pytest.mark.parametrize(
    ("name", "allowed", "wrong"), HEADERS, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_headers_at_their_extremes(gateway, name, allowed, wrong):
    for value in allowed:
        assert (await gateway.chat({name: value})).status_code == 200, value
    taken = len(gateway.relay.generations)
    for value in wrong:
        answer = await gateway.chat({name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), value
    assert len(gateway.relay.generations) == taken
