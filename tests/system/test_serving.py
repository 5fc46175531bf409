"""One manifest on a laptop: a service is scaled while it runs, and serves popular clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import client_scripts
import pytest

ONE, NONE = (f"prefill: {{min: {least}, max: 1}}" for least in (1, 0))
CLIENTS = sorted(path.stem.removeprefix("with_") for path in client_scripts.FOLDER.glob("with_*.py"))


@pytest.mark.timeout(client_scripts.SECONDS + 60)
@pytest.mark.parametrize("name", CLIENTS)
def test_client(name: str, service: Any, tmp_path: Path) -> None:
    """The scripts of `clients` assert on what comes back."""
    client_scripts.run(name, service.url, tmp_path)
    service.until_idle()


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
    for index, size in enumerate((1, 0, 1)):
        running = [service.stream("A story:", 300, temperature=0, extra_body={"ignore_eos": True}) for _ in range(3)]
        service.scale("prefill", size)
        fresh = list(range(1000 * index, 1000 * index + 100))  # that nobody has cached
        answer = service.client.completions.create(model="smollm2", prompt=fresh, max_tokens=8, temperature=0)
        prefilled_by.append(service.record(answer.id)["prefill"])
        texts |= {stream.result() for stream in running}
    assert prefilled_by == ["test-prefill-0", "local", "test-prefill-0"]
    assert len(texts) == 1
    service.until_idle()
