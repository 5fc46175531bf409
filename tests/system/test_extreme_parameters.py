"""Requests with parameters at their extremes: answered or refused, and nobody else notices.

Each parameter has its tests in tests/gateway/openai/test_parameters.py, and random bodies in test_api_fuzz.py:
here, real workers compute what is allowed.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import budget
import httpx
import random_requests

from legato_protocol.sampling.limits import LOGIT_BIAS, MAX_BIASES, MAX_STOP_TOKENS, RANGES

FEW = 3  # tokens, where the length is not what is tried
OUTPUT = 200
PAIRS = budget.times(10)
REQUESTS = budget.times(60)
SLOTS = 64  # sequences that a worker runs at once
BYSTANDER = "The lighthouse keeper climbed the stairs, and"
WHOLE = {"top_k", "seed", "min_tokens", "max_tokens"}
FIXED = {
    "model": "smollm2",
    "prompt": "A list of small towns near the river, from north to south: " * 4,
    "temperature": 0,
    "seed": 3,
    "max_tokens": FEW,
}
ACCEPTED = [
    b'"prompt": "\\u0000"', b'"prompt": "\xf0\x9f\x8e\xbc\\ud83c\\udfbc\\u202e"', b'"prompt": [%s0]' % (b"0," * 400),
    b'"stop": ["\\u0000", "\xf0\x9f\x8e\xbc"]', b'"user": "\\u0000"', b'"top_k": -1', b'"temperature": 1e-308',
]  # fmt: skip


def extremes() -> Iterator[dict[str, Any]]:
    """Values that are allowed, each alone at both ends."""
    for name, interval in RANGES.items():
        kind = int if name in WHOLE else float
        yield {name: kind(interval.least)}
        yield {name: kind(interval.most)}
    for bias in LOGIT_BIAS:
        yield {"logit_bias": {str(token): bias for token in range(MAX_BIASES)}}
    yield {"n": SLOTS, "max_tokens": 1}
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
        yield first | second
    ends = single[: 2 * len(RANGES)]
    least, most = ({name: value for fields in ends[end::2] for name, value in fields.items()} for end in (0, 1))
    yield least
    yield most | {"max_tokens": FEW, "min_tokens": FEW}
    yield most | {"max_tokens": FEW, "min_tokens": FEW, "temperature": 0.0, "logit_bias": {"0": 100.0}}


def bodies() -> Iterator[tuple[bytes, tuple[int, ...]]]:
    """Each with the statuses that are right for it."""
    for fields in (*extremes(), *together()):
        yield json.dumps(FIXED | fields).encode(), (200, 400)
    for field in ACCEPTED:
        yield json.dumps(FIXED).encode()[:-1] + b", " + field + b"}", (200,)


def test_bystanders_the_cache_and_the_workers_notice_nothing(service: Any) -> None:
    alone = service.stream(BYSTANDER, OUTPUT, temperature=0).result()

    def post(body: bytes) -> Any:
        return service.http.post("/v1/completions", content=body, headers={"content-type": "application/json"})

    cached = json.dumps(FIXED).encode()
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


def test_random_requests_for_every_path_are_no_fault_of_ours(service: Any) -> None:
    requests = random_requests.Fuzz(service.http.get("/openapi.json").json(), "smollm2", 7).requests(REQUESTS)

    async def send() -> random_requests.Answers:
        async with httpx.AsyncClient(base_url=service.url, timeout=None) as http:
            return await random_requests.run(http, requests, 8)

    answers = asyncio.run(send())
    assert not answers.faults, answers.faults[:3]
    assert sum(counts.get(200, 0) for counts in answers.statuses.values()) > REQUESTS // 4
