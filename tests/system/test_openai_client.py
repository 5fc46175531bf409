"""Promises to users of the official `openai` client that take real workers, prefill and decode separate.

Each field and each refusal has its tests in tests/gateway, against scripted workers.
"""

from typing import Any


def test_the_model_is_listed_and_found(service: Any) -> None:
    model, adapter = service.client.models.list().data
    assert service.client.models.retrieve("smollm2") == model
    assert (model.id, adapter.id) == ("smollm2", "red")


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
