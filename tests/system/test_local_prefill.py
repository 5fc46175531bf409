"""Decode workers compute prompts: while the prefill pool is empty, and while it is busy."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

TOKENS = 8
ONE, NONE = (f"prefill: {{min: {least}, max: 1}}" for least in (1, 0))


def _edit(service: Any, old: str, new: str) -> None:
    """Until the change is applied."""
    text, before = service.file.read_text(), service.log().count("change applied")
    assert old in text
    service.file.write_text(text.replace(old, new))
    service.until(lambda: service.log().count("change applied") > before, f"{new} is applied")


@pytest.fixture
def service(shared_service: Callable[..., Any]) -> Iterator[Any]:
    """One whose prefill pool may be empty."""
    found = shared_service(chunk=64)
    _edit(found, ONE, NONE)
    yield found
    found.scale("prefill", 1)
    _edit(found, NONE, ONE)


def test_decode_workers_prefill_until_a_prefill_worker_is_there_again(service: Any) -> None:
    """With requests under way all the time, of which none fails and none gives other tokens."""
    texts, prefilled_by = set(), []
    for turn, size in enumerate((1, 0, 1)):
        running = [service.stream("A story:", 100, temperature=0, extra_body={"ignore_eos": True}) for _ in range(3)]
        service.scale("prefill", size)
        fresh = list(range(1000 * turn, 1000 * turn + 100))  # that nobody has cached
        answer = service.client.completions.create(model="smollm2", prompt=fresh, max_tokens=TOKENS, temperature=0)
        prefilled_by.append(service.record(answer.id)["prefill"])
        texts |= {stream.result() for stream in running}
    assert prefilled_by == ["test-prefill-0", "local", "test-prefill-0"]
    assert len(texts) == 1
    service.until_idle()


@pytest.fixture
def helped(start: Callable[..., Any]) -> Any:
    """One whose decode worker computes what its prefill worker would have after 50 ms."""
    return start(chunk=64, busy="Local", ttft="50ms")


def test_a_decode_worker_helps_with_a_burst_of_prompts(helped: Any) -> None:
    """Each gets the tokens that it gets alone, wherever it is computed."""
    prompts = [list(range(100 * number, 100 * number + 200)) for number in range(1, 7)]
    options = {"max_tokens": TOKENS, "temperature": 0}
    burst = [helped.stream(prompt, **options, extra_body={"cache_salt": "burst"}) for prompt in prompts]
    texts = [stream.result() for stream in burst]
    placed = {record["prefill"]: record["why"] for record in helped.state()["requests"]}
    assert placed.keys() == {"local", "test-prefill-0"}
    assert "on prefill workers" in placed["local"]
    assert texts == [helped.stream(prompt, **options).result() for prompt in prompts]
    helped.until_idle()
