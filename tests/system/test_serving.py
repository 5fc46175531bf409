"""One manifest on a laptop: hand-offs, a client that leaves, scaling under load, and popular clients."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import budget
import client_scripts
import pytest
import wordy_model

ONE, NONE = (f"prefill: {{min: {least}, max: 1}}" for least in (1, 0))
CLIENTS = sorted(path.stem.removeprefix("with_") for path in client_scripts.FOLDER.glob("with_*.py"))
# Run without a budget; to import one of the others takes up to nine seconds.
FEW_CLIENTS = ["instructor", "pydantic_ai"]


def test_the_kv_of_a_prompt_comes_by_hand_off(service: Any) -> None:
    """The route that a client asks for and the record of the hand-off say so."""
    answer = service.client.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Name the capital of France."}],
        temperature=0,
        max_tokens=8,
        extra_headers={"x-legato-explain": "true"},
        extra_body={"cache_salt": secrets.token_hex(4)},
    )
    route = json.loads(answer.headers["x-legato-route"])
    (decode,) = service.workers("decode")
    assert (route["prefill"], route["decode"]) == ("test-prefill-0", decode["worker"])
    assert route["transport"].startswith("ucx")
    (handoff,) = service.record(answer.parse().id)["handoffs"]
    assert handoff["source"] == "test-prefill-0"
    assert handoff["blocks"] >= 1
    keys_and_values = 2 * wordy_model.LAYERS * wordy_model.KV_HEADS * wordy_model.HEAD  # of a token, in float32
    assert handoff["bytes"] == handoff["blocks"] * 16 * keys_and_values * 4


def test_closing_a_stream_stops_its_work_and_frees_its_blocks(service: Any) -> None:
    with service.client.completions.create(
        model="smollm2", prompt="A long story:", n=3, max_tokens=3500, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        id = next(stream).id
        service.until(lambda: any(worker["running"] for worker in service.workers()), "a worker says that it runs")
    service.until_idle()
    record = service.record(id)
    assert record["finish"].split(",") == ["cancelled"] * 3
    assert record["decode"] in {worker["worker"] for worker in service.workers("decode")}


@pytest.mark.timeout(client_scripts.SECONDS + 60)
@pytest.mark.parametrize("name", CLIENTS if budget.FACTOR > 1 else FEW_CLIENTS)
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
        running = [service.stream("A story:", 100, temperature=0, extra_body={"ignore_eos": True}) for _ in range(3)]
        service.scale("prefill", size)
        fresh = list(range(1000 * index, 1000 * index + 100))  # that nobody has cached
        answer = service.client.completions.create(model="smollm2", prompt=fresh, max_tokens=8, temperature=0)
        prefilled_by.append(service.record(answer.id)["prefill"])
        texts |= {stream.result() for stream in running}
    assert prefilled_by == ["test-prefill-0", "local", "test-prefill-0"]
    assert len(texts) == 1
    service.until_idle()
