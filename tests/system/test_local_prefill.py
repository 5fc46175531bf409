"""Decode workers compute prompts: while the prefill pool is empty, and while it is busy."""

from collections.abc import Iterator
from typing import Any

import pytest

TOKENS = 8
ONE, NONE = (f"prefill: {{min: {least}, max: 1}}" for least in (1, 0))
PATIENT = ("whenPrefillBusy: Wait}", "slo: {ttft: 1s}")
HELPED = ("whenPrefillBusy: Local}", "slo: {ttft: 1ms, tpot: 10s}")


@pytest.fixture
def may_be_empty(service: Any) -> Iterator[None]:
    """The prefill pool."""
    service.edit((ONE, NONE))
    yield
    service.scale("prefill", 1)
    service.edit((NONE, ONE))


@pytest.mark.usefixtures("may_be_empty")
def test_decode_workers_prefill_until_a_prefill_worker_is_there_again(service: Any) -> None:
    """With requests under way all the time, of which none fails and none gives other tokens."""
    texts, prefilled_by = set(), []
    for turn, size in enumerate((1, 0, 1)):
        running = [service.stream("A story:", 300, temperature=0, extra_body={"ignore_eos": True}) for _ in range(3)]
        service.scale("prefill", size)
        fresh = list(range(1000 * turn, 1000 * turn + 100))  # that nobody has cached
        answer = service.client.completions.create(model="smollm2", prompt=fresh, max_tokens=TOKENS, temperature=0)
        prefilled_by.append(service.record(answer.id)["prefill"])
        texts |= {stream.result() for stream in running}
    assert prefilled_by == ["test-prefill-0", "local", "test-prefill-0"]
    assert len(texts) == 1
    service.until_idle()


@pytest.fixture
def helped(service: Any) -> Iterator[None]:
    """The decode worker computes what the prefill worker would have later, however long its own steps are."""
    service.edit_gateway(*zip(PATIENT, HELPED, strict=True))
    yield
    service.edit_gateway(*zip(HELPED, PATIENT, strict=True))


@pytest.mark.usefixtures("helped")
def test_a_decode_worker_helps_with_a_burst_of_prompts(service: Any) -> None:
    """Each gets the tokens that it gets alone, wherever it is computed."""
    seen = {record["id"] for record in service.state()["requests"]}
    prompts = [list(range(100 * number, 100 * number + 2000)) for number in range(1, 7)]
    options = {"max_tokens": TOKENS, "temperature": 0}
    burst = [service.stream(prompt, **options, extra_body={"cache_salt": "burst"}) for prompt in prompts]
    texts = [stream.result() for stream in burst]
    records = [record for record in service.state()["requests"] if record["id"] not in seen]
    placed = {record["prefill"]: record["why"] for record in records}
    assert placed.keys() == {"local", "test-prefill-0"}
    assert "on prefill workers" in placed["local"]
    assert texts == [service.stream(prompt, **options).result() for prompt in prompts]
    service.until_idle()
