"""A prefill pool that becomes empty, and is filled again."""

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
