"""Requests with parameters at and beyond their extremes: answered or refused, and nobody else notices."""

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import random_requests

from legato_protocol.sampling_limits import LOGIT_BIAS, MAX_BIASES, MAX_CHOICES, MAX_STOP_TOKENS, RANGES

FEW = 3  # tokens, where the length is not what is tried
OUTPUT = 200
PAIRS = 40
SLOTS = 64  # sequences that a worker runs at once
BYSTANDER = "The lighthouse keeper climbed the stairs, and"
PROMPT = "A list of small towns near the river, from north to south: " * 4
WHOLE = {"top_k", "seed", "min_tokens", "max_tokens"}
FIXED = {"model": "smollm2", "prompt": PROMPT, "temperature": 0, "seed": 3}
REFUSED = [
    *(b'"%s": %s' % (name, value) for name in (b"temperature", b"top_p", b"min_p", b"presence_penalty", b"seed", b"n")
      for value in (b"NaN", b"Infinity", b"-1e308", b"1e309", b'""', b"[]", b"{}", b"9" * 400)),
    *(b'"%s": %s' % (name, value) for name in (b"max_tokens", b"n", b"top_k", b"min_tokens", b"logprobs", b"priority")
      for value in (b"-2147483649", b"9223372036854775808", b"1e308", b"0.5", b"true", b'"1"')),
    b'"max_tokens": 0', b'"n": 0', b'"n": 65', b'"n": 128', b'"repetition_penalty": 0', b'"repetition_penalty": 1e-308',
    b'"seed": 18446744073709551616', b'"seed": -9223372036854775809', b'"logprobs": 21', b'"best_of": 65',
    b'"stop": [%s"x"]' % (b'"x",' * 10_000), b'"stop": ""', b'"stop": [""]', b'"stop": "%s"' % (b"x" * 2000),
    b'"logit_bias": {%s"0": 1}' % b"".join(b'"%d": 1,' % token for token in range(100_000)),
    b'"logit_bias": {"-1": 1}', b'"logit_bias": {"99999999999999999999": 1}', b'"logit_bias": {"0": 101}',
    b'"stop_token_ids": [-1]', b'"stop_token_ids": [2147483647]', b'"stop_token_ids": [%s0]' % (b"0," * 10_000),
    b'"stream_options": ' + b'{"a":' * 100_000, b'"stop": ' + b"[" * 100_000 + b"]" * 100_000,
    b'"prompt": ""', b'"prompt": []', b'"prompt": [[]]', b'"prompt": [-1]', b'"prompt": [2147483648]',
    b'"prompt": "\\ud800"', b'"prompt": "\xff"', b'"prompt": "%s"' % (b"a " * 8192), b'"model": "\\u0000"',
    b'"unknown": ' + b"[" * 400 + b"]" * 400, b'"unknown": "%s"' % (b"x" * 1_000_000),
]  # fmt: skip
ACCEPTED = [
    b'"prompt": "\\u0000"', b'"prompt": "\xf0\x9f\x8e\xbc\\ud83c\\udfbc\\u202e"', b'"prompt": [%s0]' % (b"0," * 400),
    b'"stop": ["\\u0000", "\xf0\x9f\x8e\xbc"]', b'"user": "\\u0000"', b'"top_k": -1', b'"max_tokens": null',
    b'"temperature": 1e-308',
]  # fmt: skip


@pytest.fixture(scope="module")
def service(shared_service: Callable[..., Any]) -> Any:
    return shared_service(chunk=64)


def extremes() -> Iterator[dict[str, Any]]:
    """Values that are allowed, each alone at both ends."""
    for name, interval in RANGES.items():
        kind = int if name in WHOLE else float
        yield {name: kind(interval.least)}
        yield {name: kind(interval.most)}
    for bias in LOGIT_BIAS:
        yield {"logit_bias": {str(token): bias for token in range(MAX_BIASES)}}
    yield {"n": SLOTS, "max_tokens": 1}
    yield {"n": MAX_CHOICES}
    yield {"stop_token_ids": list(range(MAX_STOP_TOKENS))}
    yield {"stop": [" "], "max_tokens": 1000}
    yield {"stop": ["x" * 1024] * 16}
    yield {"logprobs": 5, "priority": 1000, "cache_salt": "x" * 64}
    yield {"echo": True, "user": "x" * 512}


def together() -> Iterator[dict[str, Any]]:
    """Random pairs of them, and all of one end."""
    single, chance = list(extremes()), random.Random(13)
    for _ in range(PAIRS):
        first, second = chance.sample(single, 2)
        yield {"max_tokens": FEW} | first | second
    least = {name: value for fields in single[: 2 * len(RANGES) : 2] for name, value in fields.items()}
    most = {name: value for fields in single[1 : 2 * len(RANGES) : 2] for name, value in fields.items()}
    yield least
    yield most | {"max_tokens": FEW, "min_tokens": FEW}
    yield most | {"max_tokens": FEW, "min_tokens": FEW, "temperature": 0.0, "logit_bias": {"0": 100.0}}


def bodies() -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Each with the statuses that are right for it."""
    for fields in (*({"max_tokens": FEW} | fields for fields in extremes()), *together()):
        yield json.dumps(FIXED | fields).encode(), (200, 400)
    fixed = json.dumps(FIXED | {"max_tokens": FEW}).encode()[:-1]
    for field in REFUSED:
        yield fixed + b", " + field + b"}", (400, 404)
    for field in ACCEPTED:
        yield fixed + b", " + field + b"}", (200,)


def test_bystanders_the_cache_and_the_workers_notice_nothing(service: Any) -> None:
    alone = service.stream(BYSTANDER, OUTPUT, temperature=0).result()
    with httpx.Client(base_url=str(service.client.base_url), timeout=60, trust_env=False) as http:

        def post(body: bytes) -> httpx.Response:
            return http.post("completions", content=body, headers={"content-type": "application/json"})

        cached = json.dumps(FIXED | {"max_tokens": FEW}).encode()
        post(cached)
        before = post(cached).json()
        epochs = {worker["worker"]: worker["epoch"] for worker in service.workers()}
        earlier = {record["id"] for record in service.state()["requests"]}
        streams = [service.stream(BYSTANDER, OUTPUT, temperature=0)]
        for body, statuses in bodies():
            if streams[-1].done.is_set():
                streams.append(service.stream(BYSTANDER, OUTPUT, temperature=0))
            answer = post(body)
            shown = body[-200:], answer.status_code, answer.text[:500]
            assert answer.status_code in statuses, shown
            if answer.status_code != 200:
                assert answer.json()["error"]["type"] == "invalid_request_error", shown
        assert [stream.result() for stream in streams] == [alone] * len(streams)
        after = post(cached).json()
    assert after["choices"] == before["choices"]
    assert after["usage"] == before["usage"]  # as many tokens from the cache
    assert before["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    service.until_idle()
    assert {worker["worker"]: worker["epoch"] for worker in service.workers()} == epochs
    assert all(not worker["problem"] for worker in service.workers())
    assert all(record["attempt"] <= 1 for record in service.state()["requests"] if record["id"] not in earlier)


def test_more_choices_than_a_worker_runs_at_once_are_refused_with_the_bound(service: Any) -> None:
    with httpx.Client(base_url=str(service.client.base_url), timeout=60, trust_env=False) as http:
        answer = http.post("completions", json=FIXED | {"n": SLOTS + 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert f"at most {SLOTS} run at once" in answer.text


def test_random_requests_for_every_path_are_no_fault_of_ours(service: Any) -> None:
    requests = random_requests.Fuzz(service.http.get("/openapi.json").json(), "smollm2", 7).requests(120)

    async def send() -> random_requests.Answers:
        async with httpx.AsyncClient(base_url=service.url, timeout=None) as http:
            return await random_requests.run(http, requests, 8)

    answers = asyncio.run(send())
    assert not answers.faults, answers.faults[:3]
    assert sum(counts.get(200, 0) for counts in answers.statuses.values()) > 30
    service.until_idle()
